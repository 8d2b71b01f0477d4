"""`aerobee config convert`: the TOML gives the settings that the broker.conf gives."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee.cli.configuration.convert import toml_text
from aerobee.cli.main import main
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import load_settings
from aerobee.config.model import SETTINGS, Settings
from aerobee.config.settings.setting import Setting, Value

KEYED = [one for one in SETTINGS if one.rocketmq_key and one.key_of != "Aerobee"]
WORDS = ("bee", "a b", 'say "x"', "back\\slash", "127.0.0.1:9876", "/tmp/store", "käse", "04", "")


def in_effect(loaded: Settings) -> dict[str, Value]:
    return {one.full_key: loaded.value_of(one) for one in SETTINGS if one.effect != "never"}


def value_for(setting: Setting) -> st.SearchStrategy[Value]:
    if setting.choices:
        return st.sampled_from([one for one in setting.choices if one not in setting.refused])
    if setting.type is bool:
        return st.booleans()
    if setting.type is str:
        return st.just(setting.default) | st.sampled_from(WORDS)
    low, high = setting.within or (1, 1 << 30)
    if setting.type is int:
        near = st.integers(int(low), int(min(high, low + 1000)))
        return st.just(setting.default) | near | st.integers(int(low), int(high))
    return st.floats(float(low), float(high), allow_nan=False, allow_infinity=False)


def property_text(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\")


@given(data=st.data())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_the_toml_gives_the_settings_that_the_file_gives(
    tmp_path: Path, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(KEYED), max_size=8, unique_by=lambda one: one.name))
    lines = [f"{one.rocketmq_key}={property_text(data.draw(value_for(one)))}" for one in chosen]
    conf, toml = tmp_path / "broker.conf", tmp_path / "aerobee.toml"
    conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        loaded = load_settings(conf, environ={}, format="properties")
    except ConfigError:
        return  # a broker would not start with it, and convert says why
    toml.write_text(toml_text(loaded), encoding="utf-8")
    again = load_settings(toml, environ={}, strict=True)
    assert again.format == "toml"
    assert in_effect(again.settings) == in_effect(loaded.settings)


CONF = """\
brokerName=bee
listenPort=20911
sendMessageThreadPoolNums=16
brokerNam=typo
fileReservedTime=soon
flushDiskType=OFTEN
autoCreateTopicEnable=yes
brokerRole=ASYNC_MASTER
tls.server.keyPassword=planted
"""


def test_every_key_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(CONF)
    assert main(["config", "convert", str(file), "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    found = {one["key"]: (one["line"], one["state"], one["nearest"]) for one in report["keys"]}
    assert found == {
        "brokerName": (1, "taken", None),
        "listenPort": (2, "taken", None),
        "sendMessageThreadPoolNums": (3, "no_effect", None),
        "brokerNam": (4, "unknown", "brokerName"),
        "fileReservedTime": (5, "wrong", None),
        "flushDiskType": (6, "wrong", None),
        "autoCreateTopicEnable": (7, "wrong", None),
        "brokerRole": (8, "taken", None),
        "tls.server.keyPassword": (9, "taken", None),
    }
    assert f"{file}:4: brokerNam is unknown" in captured.err
    assert "did you mean brokerName?" in captured.err
    assert "planted" not in captured.err
    assert "5 keys" not in captured.err
    assert "4 keys taken, 1 without effect, 1 unknown, 3 with a value" in captured.err
    toml = tmp_path / "out.toml"
    toml.write_text(report["toml"])
    read = load_settings(toml, environ={}).settings
    assert (read.broker_name, read.listen_port, read.ha_listen_port) == ("bee", 20911, 20912)
    # RocketMQ runs like that: other texts than true are false, other values its defaults.
    assert not read.auto_create_topic
    assert read.flush_disk_type == Settings().flush_disk_type
    assert read.tls_key_password == "planted"


def test_the_output_file_is_its_owners_alone_and_replaces_none(tmp_path: Path) -> None:
    file, output = tmp_path / "broker.conf", tmp_path / "aerobee.toml"
    file.write_text("brokerName=bee\n")
    assert main(["config", "convert", str(file), "-o", str(output)]) == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert main(["config", "convert", str(file), "-o", str(output)]) == 1


def test_a_file_that_is_toml_already_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "aerobee.toml"
    file.write_text('[broker]\nname = "bee"\n')
    assert main(["config", "convert", str(file)]) == 1


def test_a_file_that_no_broker_starts_with_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("enableDLegerCommitLog=true\n")
    assert main(["config", "convert", str(file)]) == 78
    assert "DLedger" in capsys.readouterr().err
