"""Settings that requests have changed: where they count and are kept, and faults of their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.remote_settings import remote_file, remote_text
from aerobee.config.model import SETTINGS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A broker's own file; the store is beside it."""
    path = tmp_path / "aerobee.toml"
    path.write_text(
        f'[admin]\nremote_config = true\n[store]\npath = "{tmp_path / "store"}"\n'
        "[retention]\nhours = 24\n"
    )
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of what requests have changed; not there yet."""
    path = remote_file(str(tmp_path / "store"))
    path.parent.mkdir(parents=True)
    return path


def load(file: Path, **more: object) -> Loaded:
    return load_settings(file, **{"environ": {}, "remote": {}, **more})  # type: ignore[arg-type]


def test_what_requests_may_change_is_no_path_and_no_host() -> None:
    texts = {one.full_key for one in SETTINGS if one.live and one.type is str}
    assert texts == {"retention.delete_hours", "log.level"}  # hours, and a choice


def test_it_counts_above_the_file_and_below_environment_and_flags(file: Path, kept: Path) -> None:
    kept.write_text("[retention]\nhours = 48\n")
    loaded = load(file)
    assert loaded.settings.retention_hours == 48
    assert loaded.remote_file == kept
    origin = loaded.origins["retention_hours"]
    assert (origin.source, origin.text) == ("remote", f"{kept}:2")
    assert any("retention.hours does not count: a request" in text for text in loaded.warnings)
    environ = {"AEROBEE__RETENTION__HOURS": "30"}
    assert load(file, environ=environ).settings.retention_hours == 30
    assert load(file, overrides=["fileReservedTime=31"]).settings.retention_hours == 31


def test_it_is_found_where_a_flag_says_that_the_store_is(file: Path, tmp_path: Path) -> None:
    other = remote_file(str(tmp_path / "other"))
    other.parent.mkdir(parents=True)
    other.write_text("[retention]\nhours = 50\n")
    assert load(file, flags={"store_path": str(tmp_path / "other")}).settings.retention_hours == 50


def test_it_is_not_read_where_requests_may_change_nothing(file: Path, kept: Path) -> None:
    kept.write_text("[retention]\nhours = 48\n")
    loaded = load(file, overrides=["admin.remote_config=false"])
    assert loaded.settings.retention_hours == 24
    assert f"{kept} is not read: admin.remote_config is off" in loaded.warnings
    # Nor by what is no broker: a name server, or a check of a file.
    assert load(file, remote=None).settings.retention_hours == 24


def test_one_that_cannot_be_read_stops_the_start_where_it_counts(file: Path, kept: Path) -> None:
    kept.symlink_to(kept)  # nobody, root among them, can follow it
    with pytest.raises(ConfigError, match="cannot read"):
        load(file)
    off = ["admin.remote_config=false"]
    assert load(file, overrides=off).settings.retention_hours == 24


def test_a_change_counts_as_though_it_stood_there(file: Path, kept: Path) -> None:
    kept.write_text("[retention]\nhours = 48\n[limits]\nmax_topics = 99\n")
    loaded = load(file, remote={"retention.hours": "72"})
    assert (loaded.settings.retention_hours, loaded.settings.max_topics) == (72, 99)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[retention]\nhours = 0.5\n", "must be a whole number"),
        ("[retention\n", "is not TOML"),
        ("[retention]\nhuors = 48\n", "no request changes it; delete it from this file"),
        ('[store]\npath = "/elsewhere"\n', "no request changes it; delete it from this file"),
    ],
)
def test_a_wrong_file_stops_the_start(file: Path, kept: Path, text: str, said: str) -> None:
    kept.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert said in str(caught.value)
    assert str(kept) in str(caught.value)


def test_what_is_written_is_read_as_it_was(file: Path, kept: Path) -> None:
    live = [one for one in SETTINGS if one.live]
    settings = load(file).settings
    kept.write_text(remote_text({one.full_key: settings.value_of(one) for one in live}))
    again = load(file)
    for one in live:
        assert again.settings.value_of(one) == settings.value_of(one)
    assert {again.origins[one.name].source for one in live} == {"remote"}
