"""The declarations, the manual made of them, and the limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.broker.lifecycle.daemon import remoting_limits
from aerobee.config.bounds.limits import check_limits, connection_limit, open_files_allowed
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import load_settings
from aerobee.config.manual import MANUAL, manual
from aerobee.config.model import BY_FULL_KEY, BY_ROCKETMQ_KEY, SECTIONS, SETTINGS, Settings


def test_every_attribute_is_described_once() -> None:
    attributes = [
        name
        for section in SECTIONS
        for name, kind in section.__annotations__.items()
        if not str(kind).startswith("typing.ClassVar")
    ]
    assert [setting.name for setting in SETTINGS] == attributes
    assert len(set(attributes)) == len(attributes)
    assert len(BY_FULL_KEY) == len(SETTINGS)
    keys = [key for s in SETTINGS for key in (s.rocketmq_key, *s.aliases) if key]
    assert len(keys) == len(set(keys)) == len(BY_ROCKETMQ_KEY)


def test_settings_are_frozen_compared_by_value_and_keep_secrets_to_themselves() -> None:
    settings = Settings(listen_port=1, tls_key_password="hidden")
    with pytest.raises(AttributeError, match="listen_port"):
        settings.listen_port = 2  # type: ignore[misc]
    assert settings == Settings(tls_key_password="hidden", listen_port=1) != Settings()
    assert "listen_port=1" in repr(settings)
    assert "hidden" not in repr(settings)
    with pytest.raises(TypeError, match="there is no setting listen_prot"):
        Settings(listen_prot=1)


def test_every_default_passes_its_own_check() -> None:
    for setting in SETTINGS:
        assert setting.check(setting.default) == setting.default, setting.name


def test_every_setting_has_a_reason_that_is_a_sentence() -> None:
    for setting in SETTINGS:
        assert (
            setting.reason[0].isupper()
            or setting.reason[0].isdigit()
            or (setting.name == "log_format")
        ), setting.name
        assert setting.reason.endswith("."), setting.name


def test_the_manual_is_up_to_date() -> None:
    assert MANUAL.read_text(encoding="utf-8") == manual()


def test_the_manual_with_everything_uncommented_is_the_defaults(tmp_path: Path) -> None:
    text = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in manual().splitlines()
    )
    file = tmp_path / "all.toml"
    file.write_text(text.replace("\n#\n", "\n"), encoding="utf-8")
    loaded = load_settings(file, environ={})
    assert loaded.settings == load_settings(environ={}).settings
    assert {origin.source for origin in loaded.origins.values()} == {"file"}


def test_the_manual_as_it_is_changes_nothing() -> None:
    loaded = load_settings(MANUAL, environ={})
    assert (loaded.format, loaded.given(), loaded.warnings) == ("toml", [], ())


def test_settings_for_tests_are_resolved() -> None:
    settings = Settings.for_tests(consume_queue_segment_bytes=21, listen_port=0)
    assert settings.consume_queue_segment_bytes == 40
    assert settings.store_path == os.path.expanduser("~/store")
    assert settings.broker_name
    assert settings.with_changes(listen_port=7).listen_port == 7


def test_paths_are_absolute_and_home_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.for_tests(store_path=".run/store", nameserver_kv_path="~/kv.json")
    assert settings.store_path == str(tmp_path / ".run" / "store")
    assert settings.nameserver_kv_path == os.path.expanduser("~/kv.json")
    assert settings.commit_log_path == ""


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings.for_tests().listen_port = 1  # type: ignore[misc]


def test_limits_of_the_defaults_hold() -> None:
    check_limits(Settings.for_tests())
    limit = connection_limit(Settings.for_tests(), open_files=65_536)
    assert limit.connections == 10_000
    assert limit.warnings == ()


def test_connections_fit_the_open_files() -> None:
    limit = connection_limit(Settings.for_tests(), open_files=1024)
    assert limit.connections == 1024 - 256
    assert remoting_limits(Settings.for_tests(), 768).connections_per_address == 768
    assert "ulimit" in limit.warnings[0]
    with pytest.raises(ConfigError, match="leaves no connections"):
        connection_limit(Settings.for_tests(), open_files=200)
    assert open_files_allowed() > 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_message_bytes": 16_777_216}, "store.max_message_bytes"),
        (
            {"commit_log_segment_bytes": 1_000_000, "max_message_bytes": 999_999},
            "store.max_message_bytes",
        ),
        ({"max_header_bytes": 100_000}, "limits.max_header_bytes"),
        ({"transfer_bytes_memory": 16_000_000}, "store.transfer_bytes_memory"),
        ({"inbound_bytes": 1_048_576}, "limits.max_frame_bytes"),
        ({"outbound_bytes": 1_048_576}, "limits.outbound_bytes_per_connection"),
        ({"default_topic_queues": 2000}, "topics.default_topic_queues"),
    ],
)
def test_limits_that_contradict_each_other_stop(changes: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_limits(Settings.for_tests(**changes))
    assert caught.value.key == key


def test_the_model_imports_quickly_and_nothing_heavy() -> None:
    code = (
        "import sys, aerobee.config.loading.load;"
        "heavy = {'asyncio','rich','difflib','json','logging','unittest'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
