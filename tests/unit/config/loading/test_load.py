"""Sources, precedence, and what stops a start."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.options import parse_addresses
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.value_sources import detect_format
from aerobee.config.model import SETTINGS, Settings
from aerobee.pipeline.brokers.broker_options import ACCESS_OPTIONS, read_access, topic_options

DISTRIBUTED_CONF = """\
# as it comes with RocketMQ
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""
# Settings of parts that are not built yet.
_LATER = "duplicationEnable=true\nmessageIndexSafe=true\n"


def load(
    tmp_path: Path, text: str | bytes = "", name: str = "broker.conf", **arguments: Any
) -> Loaded:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_settings(file, environ=arguments.pop("environ", {}), **arguments)


def refused(tmp_path: Path, text: str | bytes, **arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **arguments)
    return caught.value


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("listenPort=21876\n", {}, 21876),
        ("nameserver.port=5\nlistenPort=21876\n", {}, 5),
        ("listenPort=21876\n", {"overrides": ["nameserver.port=6"]}, 6),
        ("listenPort=21876\n", {"environ": {"AEROBEE__NAMESERVER__PORT": "7"}}, 7),
        ("", {"overrides": ["listenPort=21877"]}, 21877),
    ],
)
def test_listen_port_is_the_name_servers_in_a_file_of_its_own(
    tmp_path: Path, text: str, given: dict[str, Any], expected: int
) -> None:
    alone = load(
        tmp_path, text, name="namesrv.conf", format="properties", name_server=True, **given
    )
    assert alone.settings.nameserver_port == expected
    assert (alone.settings.listen_port, alone.origins["listen_port"].text) == (10911, "default")


def test_listen_port_of_a_name_server_is_named_as_it_was_written(tmp_path: Path) -> None:
    loaded = load(tmp_path, "# ours\nlistenPort=21876\n", name_server=True)
    assert loaded.origins["nameserver_port"].text == f"{tmp_path / 'broker.conf'}:2"
    error = refused(tmp_path, "listenPort=many\n", name_server=True)
    assert (error.key, error.where) == ("listenPort", f"{tmp_path / 'broker.conf'}:1")
    broker = load(tmp_path, "listenPort=21876\n").settings
    assert (broker.listen_port, broker.nameserver_port) == (21876, 9876)
    toml = load(tmp_path, "[broker]\nlisten_port = 5\n", name_server=True).settings
    assert (toml.listen_port, toml.nameserver_port) == (5, 9876)


def _about_accounts(loaded: Loaded) -> list[str]:
    return [line for line in loaded.warnings if "aclFile" in line or "acl.plain" in line]


@pytest.mark.parametrize("key", ["aclFile", "rocketmq.acl.plain.file"])
def test_accounts_that_nothing_asks_for_are_warned_of(tmp_path: Path, key: str) -> None:
    text = f"{key}=conf/plain_acl.yml\n"
    (warning,) = _about_accounts(load(tmp_path, text))
    assert warning.startswith(f"{key} is given, but nothing is checked until aclEnable=true")
    assert not _about_accounts(load(tmp_path, text + "aclEnable=true\n"))
    assert not _about_accounts(load(tmp_path, f"{key}=\n"))
    (warning,) = _about_accounts(load(tmp_path, text + "namesrvAclEnable=true\n"))
    assert "the broker checks nothing until aclEnable=true" in warning


def test_accounts_that_a_name_server_does_not_ask_for_are_warned_of(tmp_path: Path) -> None:
    text = "aclFile=conf/plain_acl.yml\n"
    (warning,) = _about_accounts(load(tmp_path, text, name_server=True))
    assert warning.startswith(
        "aclFile is given, but nothing is checked until namesrvAclEnable=true"
    )
    good = load(tmp_path, text + "namesrvAclEnable=true\n", name_server=True)
    assert not _about_accounts(good)


def test_the_distributed_broker_conf_is_accepted_as_it_is(tmp_path: Path) -> None:
    loaded = load(tmp_path, DISTRIBUTED_CONF)
    assert loaded.format == "properties"
    assert loaded.settings.broker_name == "broker-a"
    assert loaded.settings.retention_hours == 48
    assert loaded.idle == ()


def test_settings_without_effect_are_reported_in_one_line_a_kind(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, DISTRIBUTED_CONF + "sendMessageThreadPoolNums=8\nhighSpeedMode=true\n" + _LATER
    )
    later = [line for line in loaded.warnings if "not in effect yet" in line]
    never = [line for line in loaded.warnings if "without effect here" in line]
    assert len(later) == len(never) == 1
    assert later[0].endswith("messageIndexSafe, duplicationEnable")
    assert never[0].endswith("highSpeedMode, sendMessageThreadPoolNums")


def test_a_delay_longer_than_messages_are_kept_is_warned_of(tmp_path: Path) -> None:
    text = "fileReservedTime=48\nmessageDelayLevel=1s 3d 2h\n"
    expected = "delay level 3d are deleted before they are due"
    assert any(expected in line for line in load(tmp_path, text).warnings)
    text = text.replace("3d", "47h")
    assert not any("before they are due" in line for line in load(tmp_path, text).warnings)


def test_flags_beat_set_beat_environment_beat_file_beat_default(tmp_path: Path) -> None:
    text = "[broker]\nlisten_port = 1001\nvip_port_enabled = false\n"
    environ = {"AEROBEE__BROKER__LISTEN_PORT": "1002"}
    only_file = load(tmp_path, text)
    with_environment = load(tmp_path, text, environ=environ)
    with_set = load(tmp_path, text, environ=environ, overrides=["broker.listen_port=1003"])
    with_flag = load(
        tmp_path,
        text,
        environ=environ,
        overrides=["listenPort=1003"],
        flags={"listen_port": 1004, "store_path": None},
    )
    found = [item.settings.listen_port for item in (only_file, with_environment, with_set)]
    assert found == [1001, 1002, 1003]
    assert with_flag.settings.listen_port == 1004
    assert with_flag.settings.vip_port_enabled is False
    assert load_settings(environ={}).settings.listen_port == 10911


def test_origins_name_the_place(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "brokerName=a\n",
        environ={"AEROBEE__LOG__LEVEL": "debug"},
        overrides=["broker.region_id=r"],
        flags={"listen_port": 5},
    )
    texts = {name: origin.text for name, origin in loaded.origins.items()}
    assert texts["broker_name"] == f"{tmp_path / 'broker.conf'}:1"
    assert texts["log_level"] == "environment AEROBEE__LOG__LEVEL"
    assert texts["region_id"] == "--set"
    assert texts["listen_port"] == "command line"
    assert texts["store_path"] == "default"
    assert loaded.settings.log_level == "DEBUG"


def test_namesrv_addr_is_a_default_that_a_file_overrides(tmp_path: Path) -> None:
    environ = {"NAMESRV_ADDR": "env:9876", "ROCKETMQ_HOME": "/opt/rocketmq"}
    assert load(tmp_path, "", environ=environ).settings.name_servers == "env:9876"
    loaded = load(tmp_path, "namesrvAddr=file:9876\n", environ=environ)
    assert loaded.settings.name_servers == "file:9876"
    assert loaded.settings.rocketmq_home == "/opt/rocketmq"
    assert loaded.idle == ()


def test_toml_with_an_unknown_key_stops_with_the_nearest_name_and_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "[broker]\n\nlisten_prot = 1\n", name="a.toml")
    assert error.where == f"{tmp_path / 'a.toml'}:3"
    assert str(error).endswith(
        "broker.listen_prot: unknown setting; did you mean broker.listen_port?"
    )


def test_toml_with_rocketmq_s_key_is_told_our_name(tmp_path: Path) -> None:
    error = refused(tmp_path, "[broker]\nbrokerIP1 = 'x'\n")
    assert "here it is broker.advertised_host" in error.reason


def test_toml_key_outside_its_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert "here it is broker.listen_port" in refused(tmp_path, "listen_port = 1\n").reason
    assert (
        "here it is store.flush_disk_type"
        in refused(tmp_path, "[broker]\nflush_disk_type = 'SYNC_FLUSH'\n").reason
    )


def test_broker_conf_with_an_unknown_key_warns_with_the_nearest_name(tmp_path: Path) -> None:
    loaded = load(tmp_path, "flushDiskTyp=SYNC_FLUSH\n")
    assert loaded.settings.flush_disk_type == "ASYNC_FLUSH"
    assert (
        "broker.conf:1: flushDiskTyp: unknown setting; did you mean flushDiskType?"
        in (loaded.warnings[0])
    )


def test_paths_of_example_files_are_said_to_be_derived(tmp_path: Path) -> None:
    keys = ("storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile")
    text = "bindAddress=127.0.0.1\n" + "".join(f"{key}=/data/{key}\n" for key in keys)
    for strict in (False, True):
        (warning,) = load(tmp_path, text, strict=strict).warnings
        assert warning.startswith("has no effect here: derived from storePathRootDir")
        assert warning.endswith(", ".join(keys))


def test_strict_makes_that_an_error(tmp_path: Path) -> None:
    assert refused(tmp_path, "flushDiskTyp=SYNC_FLUSH\n", strict=True).key == "flushDiskTyp"


def test_broker_conf_may_hold_our_own_keys_too(tmp_path: Path) -> None:
    loaded = load(tmp_path, "listenPort=1000\nlog.level=ERROR\n")
    assert (loaded.format, loaded.settings.log_level) == ("properties", "ERROR")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("AEROBEE_BROKER_LISTEN_PORT", "AEROBEE__BROKER__LISTEN_PORT"),
        ("AEROBEE_BROKER__LISTEN_PORT", "AEROBEE__BROKER__LISTEN_PORT"),
        ("AEROBEE_STORE_PATH", "AEROBEE__STORE__PATH"),
        ("AEROBEE_LISTEN_PORT", "AEROBEE__SECTION__KEY"),
    ],
)
def test_single_underscores_in_the_environment_warn_with_the_right_name(
    name: str, form: str
) -> None:
    loaded = load_settings(environ={name: "11911"})
    assert loaded.settings.listen_port == 10911
    (warning,) = loaded.warnings
    assert warning.startswith(f"environment {name} is ignored")
    assert warning.endswith(form)


def test_variables_that_are_no_settings_are_left_alone() -> None:
    environ = {
        "AEROBEE_CONTEXT": "prod",
        "AEROBEE_NATIVE": "required",
        "AEROBEE_INTEROP_AGAINST": "java",
        "AEROBEE_SERVICE_HOST": "10.0.0.1",
        "AEROBEE_SERVICE_PORT_BROKER": "10911",
        "AEROBEE_PORT": "tcp://10.0.0.1:10911",
        "AEROBEE_PORT_10911_TCP_ADDR": "10.0.0.1",
        "AEROBEES": "5",
    }
    assert load_settings(environ=environ).warnings == ()


def test_unknown_environment_key_stops(tmp_path: Path) -> None:
    error = refused(tmp_path, "", environ={"AEROBEE__BROKER__PORT": "1"})
    assert error.where == "environment AEROBEE__BROKER__PORT"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("listenPort=abc", "must be a whole number, 0 to 65535"),
        ("listenPort=10911L", "must be a whole number, 0 to 65535"),
        ("listenPort=0x10", "must be a whole number, 0 to 65535"),
        ("listenPort=70000", "must be 0 to 65535"),
        ("listenPort=", "must be a whole number, 0 to 65535"),
        ("aclEnable=yes", "must be true or false"),
        ("flushDiskType=SYNC", "must be ASYNC_FLUSH or SYNC_FLUSH"),
        ("diskSpaceWarningLevelRatio=high", "must be a number, 0.01 to 1.0"),
        ("namesrvAddr=host", "must be host:port, several separated by ';' or ','"),
        ("namesrvAddr=a:9876 b:9876", "must be host:port, several separated by ';' or ','"),
        ("deleteWhen=25", "must be hours of the day (00 to 23)"),
        ("messageDelayLevel=1s 5x", "must be levels such as 10s 5m 2h 1d"),
        ("messageDelayLevel=", "must have one level at least"),
        ("brokerName=a\\u0007", "must not contain control characters"),
        ("storePathCommitLog=/a,/b,/a/", "names a directory twice"),
        ("readOnlyCommitLogStorePaths=/a,/b/../a", "names a directory twice"),
        ("storePathCommitLog=/a,~/store", "must not be the store directory, nor hold it"),
        ("storePathCommitLog=~", "must not be the store directory, nor hold it"),
        ("storePathCommitLog=~/store/index", "names a directory that holds other store files"),
        ("storePathCommitLog=/a,/a/b", "names a directory inside of another one"),
    ],
)
def test_wrong_value_stops_with_key_value_reason_and_line(
    tmp_path: Path, line: str, reason: str
) -> None:
    error = refused(tmp_path, f"# first\n{line}\n")
    key, _, value = line.partition("=")
    assert (error.key, error.reason) == (key, reason)
    assert error.where == f"{tmp_path / 'broker.conf'}:2"
    if "\\" not in value:
        assert error.value == value
    assert error.EXIT_CODE == 78


def test_log_directories_are_lists_of_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "storePathCommitLog= /b , a,/ab\nreadOnlyCommitLogStorePaths=/b,/old\n"
    settings = load(tmp_path, text).settings
    assert settings.commit_log_directories == ("/b", str(tmp_path / "a"), "/ab")
    assert settings.read_only_commit_log_directories == ("/b", "/old")
    assert load(tmp_path).settings.read_only_commit_log_directories == ()
    alone = load(tmp_path, f"storePathRootDir={tmp_path}\n").settings
    assert alone.commit_log_directories == (str(tmp_path / "commitlog"),)


def test_pool_without_effect_is_a_warning_and_one_too_small_to_fail_fast_an_error(
    tmp_path: Path,
) -> None:
    text = "transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH\n"
    loaded = load(tmp_path, text)
    assert not loaded.settings.transient_pool_effective
    assert any("not used with SYNC_FLUSH" in line for line in loaded.warnings)
    loaded = load(tmp_path, "transientStorePoolEnable=true\n")
    assert loaded.settings.transient_pool_effective
    assert not any("transient" in line for line in loaded.warnings)
    text = "transientStorePoolSize=2\nfastFailIfNoBufferInStorePool=true\n"
    error = refused(tmp_path, text)
    assert error.key == "transientStorePoolSize"
    assert "3 or more" in error.reason


def test_read_only_directories_leave_one_for_new_segments(tmp_path: Path) -> None:
    text = "storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/b,/a\n"
    error = refused(tmp_path, text)
    assert error.key == "readOnlyCommitLogStorePaths"
    assert error.reason == "leaves no directory for new segments"
    crossed = refused(tmp_path, "storePathCommitLog=/a\nreadOnlyCommitLogStorePaths=/a/b\n")
    assert crossed.reason == "names a directory inside of another one"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[broker]\nlisten_port = '1'\n", "must be a whole number, 0 to 65535, not text in quotes"),
        ("[broker]\nlisten_port = 1.5\n", "must be a whole number, 0 to 65535"),
        ("[broker]\nlisten_port = true\n", "must be a whole number, 0 to 65535"),
        ("[broker]\nvip_port_enabled = 1\n", "must be true or false"),
        ("[broker]\nname = 5\n", "must be a text"),
        ("[broker]\nname_servers = ['a:1', 2]\n", "must be a list of texts"),
    ],
)
def test_toml_values_have_their_type(tmp_path: Path, text: str, reason: str) -> None:
    error = refused(tmp_path, text)
    assert error.reason == reason
    assert error.where.endswith(":2")


def test_toml_list_of_name_servers_is_joined(tmp_path: Path) -> None:
    loaded = load(tmp_path, "[broker]\nname_servers = ['a:1', '[::1]:2']\n")
    assert loaded.settings.name_servers == "a:1;[::1]:2"
    assert loaded.settings.name_server_list == ("a:1", "[::1]:2")


def test_ratio_may_be_a_whole_number_in_toml(tmp_path: Path) -> None:
    loaded = load(tmp_path, "[store]\ndisk_warning_ratio = 1\n")
    assert loaded.settings.disk_warning_ratio == 1.0


@pytest.mark.parametrize(
    "line",
    [
        "enableDLegerCommitLog=true",
        "fetchNamesrvAddrByAddressServer=true",
        "metricsExporterType=OTLP_GRPC",
    ],
)
def test_promises_that_cannot_be_kept_stop_the_start(tmp_path: Path, line: str) -> None:
    assert refused(tmp_path, line).key == line.partition("=")[0]


def test_an_address_server_that_nobody_would_ask_is_only_reported(tmp_path: Path) -> None:
    text = "namesrvAddr=10.0.0.1:9876\nfetchNamesrvAddrByAddressServer=true\n"
    loaded = load(tmp_path, text)
    assert any("fetchNamesrvAddrByAddressServer" in line for line in loaded.warnings)


def test_dledger_off_is_only_reported(tmp_path: Path) -> None:
    assert "enableDLegerCommitLog" in load(tmp_path, "enableDLegerCommitLog=false\n").warnings[0]


def test_ha_port_of_a_broker_conf_is_always_the_next_port(tmp_path: Path) -> None:
    loaded = load(tmp_path, "listenPort=20000\nhaListenPort=5\n")
    assert loaded.settings.ha_listen_port == 20001
    assert any("haListenPort 5 is ignored" in line for line in loaded.warnings)
    quiet = load(tmp_path, "listenPort=20000\nhaListenPort=20001\n")
    assert not any("ignored" in line for line in quiet.warnings)


def test_ha_port_of_a_toml_file_counts(tmp_path: Path) -> None:
    text = "[broker]\nlisten_port = 20000\n[replication]\nha_listen_port = 5\n"
    assert load(tmp_path, text).settings.ha_listen_port == 5


@pytest.mark.parametrize(
    ("text", "opens", "why"),
    [
        ("", False, "default"),
        ("listenPort=20000\nbrokerIP1=10.0.0.1\n", False, "default"),
        (DISTRIBUTED_CONF, True, "brokerRole (replication.broker_role) is given"),
        ("brokerRole=SYNC_MASTER\n", True, "brokerRole (replication.broker_role) is given"),
        ("haListenPort=20001\n", True, "haListenPort (replication.ha_listen_port) is given"),
        ("slaveTimeout=100\n", True, "slaveTimeout (replication.slave_timeout_ms) is given"),
        ("brokerRole=ASYNC_MASTER\nhaEnabled=false\n", False, None),
        ("haEnabled=true\n", True, None),
    ],
)
def test_the_port_for_slaves_opens_when_a_setting_of_replication_is_named(
    tmp_path: Path, text: str, opens: bool, why: str | None
) -> None:
    loaded = load(tmp_path, text)
    assert loaded.settings.replicates is opens
    if why is not None:
        assert loaded.origins["ha_enabled"].text == why
    assert loaded.idle == ()


def test_replication_is_closed_to_tests_unless_they_ask_for_it() -> None:
    assert not Settings.for_tests().replicates
    assert Settings.for_tests(ha_enabled=True).replicates
    assert Settings.for_tests(broker_role="SLAVE", broker_id=1).replicates
    assert Settings.for_tests(broker_role="SYNC_MASTER").sync_master
    assert Settings.for_tests(listen_port=0).ha_listen_port == 0, "any free port, like the other"


_SLAVE = "brokerRole=SLAVE\nbrokerName=b-a\nbrokerId=1\nnamesrvAddr=10.0.0.1:9876\n"


def test_a_slave_is_accepted_and_its_report_is_what_its_flush_promises(tmp_path: Path) -> None:
    settings = load(tmp_path, _SLAVE).settings
    assert (settings.broker_role, settings.broker_id) == ("SLAVE", 1)
    assert not settings.ha_ack_durable
    assert load(tmp_path, _SLAVE + "flushDiskType=SYNC_FLUSH\n").settings.ha_ack_durable
    chosen = _SLAVE + "flushDiskType=SYNC_FLUSH\nhaAckDurable=false\n"
    assert not load(tmp_path, chosen).settings.ha_ack_durable
    assert not load(tmp_path, "flushDiskType=SYNC_FLUSH\n").settings.ha_ack_durable


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("brokerRole=SLAVE\n", "broker.id", "a slave's must be above 0"),
        ("brokerRole=SLAVE\nbrokerId=0\n", "brokerId", "a slave's must be above 0"),
        ("brokerRole=SYNC_MASTER\nhaEnabled=false\n", "haEnabled", "a SYNC_MASTER needs the port"),
        (_SLAVE + "haEnabled=false\n", "haEnabled", "a SLAVE needs the port"),
        (_SLAVE + "haMasterAddress=10.0.0.1\n", "haMasterAddress", "must be host:port"),
        ("haSlaveAddresses=10.0.0.1;10.0.0.0/8\n", "haSlaveAddresses", "written as a range"),
        ("inSyncReplicas=17\n", "inSyncReplicas", "must be 1 to 16 copies"),
        ("haTransferBatchSize=4194293\n", "haTransferBatchSize", "1024 to 4194292 bytes"),
    ],
)
def test_replication_that_cannot_work_stops_the_start(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    error = refused(tmp_path, text)
    assert error.key == key
    assert reason in error.reason


@pytest.mark.parametrize("number", ["abc", "-1"])
def test_a_value_that_was_refused_is_not_refused_again_for_the_default(
    tmp_path: Path, number: str
) -> None:
    error = refused(tmp_path, _SLAVE.replace("brokerId=1", f"brokerId={number}"))
    assert [(one.key, one.value) for one in error.errors] == [("brokerId", number)]


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("brokerRole=SYNC_MASTER\nhaSendHeartbeatInterval=20000\n", True),
        ("brokerRole=SYNC_MASTER\nhaSendHeartbeatInterval=19999\n", False),
        (_SLAVE + "haHousekeepingInterval=5000\n", True),
        (_SLAVE + "haHousekeepingInterval=5001\n", False),
        ("haEnabled=false\nhaHousekeepingInterval=5000\n", False),
    ],
)
def test_signs_of_life_that_come_too_late_are_warned_of(
    tmp_path: Path, text: str, warned: bool
) -> None:
    found = [line for line in load(tmp_path, text).warnings if "haSendHeartbeatInterval" in line]
    assert len(found) == warned
    assert all("the other machine" in line for line in found)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (_SLAVE + "haMasterAddress=a:1\n", "haMasterAddress a:1 is ignored"),
        (
            _SLAVE + "haMasterAddress=10.0.0.1:9876\n",
            "haMasterAddress 10.0.0.1:9876 has the port of",
        ),
        (
            _SLAVE + "haMasterAddress=10.0.0.1:10911\n",
            "haMasterAddress 10.0.0.1:10911 has the port",
        ),
        (_SLAVE.replace("brokerName=b-a\n", ""), "a slave has the name of its master"),
        (_SLAVE.replace("namesrvAddr", "#"), "nobody tells this slave where its master is"),
    ],
)
def test_a_slave_that_may_not_find_its_master_is_warned_of(
    tmp_path: Path, text: str, warning: str
) -> None:
    loaded = load(tmp_path, text)
    assert len([line for line in loaded.warnings if warning in line]) == 1
    found = load(tmp_path, _SLAVE + "haMasterAddress=10.0.0.1:10912\n")
    assert not [line for line in found.warnings if "master" in line.lower()]


def test_a_list_of_slaves_may_be_one_in_toml(tmp_path: Path) -> None:
    text = '[replication]\nha_slave_addresses = ["10.0.0.{1,2}", "10.1.2.*"]\n'
    assert load(tmp_path, text).settings.ha_slave_addresses == "10.0.0.{1,2};10.1.2.*"


def test_a_master_is_number_0_whatever_was_said(tmp_path: Path) -> None:
    loaded = load(tmp_path, "brokerId=3\n")
    assert loaded.settings.broker_id == 0
    assert any("broker id 3 is ignored" in line for line in loaded.warnings)


def test_clamped_settings_warn(tmp_path: Path) -> None:
    loaded = load(tmp_path, "registerNameServerPeriod=5\ndiskMaxUsedSpaceRatio=99\n")
    assert loaded.settings.register_interval_ms == 10_000
    assert loaded.settings.disk_max_used_percent == 95
    assert sum("as RocketMQ does" in line for line in loaded.warnings) == 2


def test_trailing_blanks_are_trimmed_with_a_warning(tmp_path: Path) -> None:
    loaded = load(tmp_path, "brokerName=a  \nlistenPort=1 \n")
    assert (loaded.settings.broker_name, loaded.settings.listen_port) == ("a", 1)
    assert sum("blanks after the value" in line for line in loaded.warnings) == 2


def test_a_repeated_key_counts_last_and_warns(tmp_path: Path) -> None:
    loaded = load(tmp_path, "listenPort=1\nlistenPort=2\n")
    assert loaded.settings.listen_port == 2
    assert any(":2: listenPort is set twice" in line for line in loaded.warnings)


def test_utf8_is_noted(tmp_path: Path) -> None:
    assert any("UTF-8" in line for line in load(tmp_path, "regionId=å\n").warnings)


def test_former_jvm_properties_are_ordinary_keys(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "rocketmq.broker.diskSpaceWarningLevelRatio=0.8\nframeMaxLength=20000000\n"
        "rocketmq.broker.rebalance.lockMaxLiveTime=30000\n",
    )
    settings = loaded.settings
    assert (settings.disk_warning_ratio, settings.max_frame_bytes) == (0.8, 20_000_000)
    assert settings.lock_lease_ms == 30_000


def test_other_name_servers_leave_the_embedded_one_off(tmp_path: Path) -> None:
    assert load(tmp_path, "").settings.nameserver_enabled
    assert not load(tmp_path, "namesrvAddr=a:9876\n").settings.nameserver_enabled
    asked = load(tmp_path, "namesrvAddr=a:9876\n", flags={"nameserver_port": 9876})
    assert asked.settings.nameserver_enabled


def test_port_0_turns_name_server_and_http_off(tmp_path: Path) -> None:
    loaded = load(tmp_path, "", flags={"nameserver_port": 0, "http_port": 0, "listen_port": 0})
    assert not loaded.settings.nameserver_enabled
    assert not loaded.settings.http_enabled
    assert loaded.origins["http_enabled"].source == "rule"


def test_telling_everybody_but_listening_on_loopback_warns(tmp_path: Path) -> None:
    assert any("bindAddress" in line for line in load(tmp_path, "brokerIP1=10.0.0.1\n").warnings)
    said = load(tmp_path, "brokerIP1=10.0.0.1\nbindAddress=127.0.0.1\n")
    assert said.warnings == ()


def test_a_broker_conf_without_an_address_warns_of_loopback(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, "brokerName=b\n").warnings
    assert "listens on 127.0.0.1 only" in warning
    assert "bindAddress=0.0.0.0" in warning
    assert load(tmp_path, "brokerName=b\nbindAddress=0.0.0.0\n").warnings == ()
    assert load(tmp_path, "brokerName=b\n", flags={"listen_host": "127.0.0.1"}).warnings == ()
    assert load(tmp_path, "[broker]\nname = 'b'\n", name="a.toml").warnings == ()


def test_relation_between_limits_names_the_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "\nmaxMessageSize=20000000\n")
    assert error.where.endswith(":2")
    assert "would not fit a frame" in error.reason


def test_small_segments_shrink_the_default_message_size(tmp_path: Path) -> None:
    loaded = load(tmp_path, "mappedFileSizeCommitLog=1048576\n")
    assert loaded.settings.max_message_bytes < 1_048_576
    assert any("messages are limited to" in line for line in loaded.warnings)
    chosen = refused(tmp_path, "mappedFileSizeCommitLog=1048576\nmaxMessageSize=4000000\n")
    assert "would not fit a commit log segment" in chosen.reason


def test_secrets_do_not_appear_in_errors(tmp_path: Path) -> None:
    error = refused(tmp_path, "tls.server.keyPassword=hunter\\u00012\n")
    assert "hunter" not in str(error)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot read: No such file"):
        load_settings(tmp_path / "nowhere.toml", environ={})


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    assert refused(tmp_path, "[broker]\nname = \n").where.endswith("broker.conf:2")


def test_an_empty_store_path_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "", flags={"store_path": ""}).reason == "must name a directory"
    assert refused(tmp_path, "storePathRootDir=\n").where.endswith("broker.conf:1")


def test_set_needs_an_equals_sign() -> None:
    with pytest.raises(ConfigError, match="must be KEY=VALUE"):
        load_settings(environ={}, overrides=["listenPort"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "toml"),
        ("# only a comment\n", "toml"),
        ("[broker]\nlisten_port = 1\n", "toml"),
        ("broker.listen_port = 1\n", "toml"),
        ("listen_port = 1\n", "toml"),
        ("listenPort=1\nbrokerId=0\n", "properties"),
        ("brokerName broker-a\n", "properties"),
        ("namesrvAddr=[::1]:9876\n", "properties"),
        ("log.level=ERROR\n", "properties"),
    ],
)
def test_formats_are_told_apart_by_content(text: str, expected: str) -> None:
    assert detect_format(text.encode()) == expected


def test_format_can_be_said(tmp_path: Path) -> None:
    assert load(tmp_path, "brokerId=0\n", format="properties").format == "properties"
    assert refused(tmp_path, "brokerId=0\n", format="toml").key == "brokerId"


@pytest.mark.parametrize("text", ["[broker\nlisten_port = 1\n", 'broker.name = "x\n', "a=1"])
def test_a_name_that_ends_in_toml_is_believed(tmp_path: Path, text: str) -> None:
    """Read as properties, these would be unknown settings, which are ignored."""
    assert refused(tmp_path, text, name="a.toml").where.endswith("a.toml:1")


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    error = refused(
        tmp_path, 'unheard = 1\n[broker]\nlisten_port = "x"\ncluster_name = " "\n', name="a.toml"
    )
    file = tmp_path / "a.toml"
    assert [(one.where, one.key) for one in error.errors] == [
        (f"{file}:1", "unheard"),
        (f"{file}:3", "broker.listen_port"),
        (f"{file}:4", "broker.cluster_name"),
    ]
    assert (error.where, error.key) == (f"{file}:1", "unheard")
    assert len(str(error).splitlines()) == 3


def test_a_single_error_is_itself(tmp_path: Path) -> None:
    error = refused(tmp_path, "listenPort=x\n")
    assert error.errors == (error,)


@pytest.mark.parametrize("key", ["brokerName", "brokerClusterName"])
@pytest.mark.parametrize("name", ["my broker", "rack/1", "node1.example.org", "a;b:1", "n" * 128])
def test_names_that_rocketmq_takes_are_taken_with_a_warning(
    tmp_path: Path, key: str, name: str
) -> None:
    """RocketMQ and its tools work with them: a broker.conf must not stop the start for it."""
    loaded = load(tmp_path, f"{key}={name}\nbindAddress=0.0.0.0\n")
    assert name in (loaded.settings.broker_name, loaded.settings.cluster_name)
    what = "broker" if key == "brokerName" else "cluster"
    warning = loaded.warnings[0]
    assert warning.startswith(f"{what} name {name!r} is no legal name of a topic: ")
    assert ("order topics" in warning) == (key == "brokerName" and ";" in name)
    assert len(loaded.warnings) == 1


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(b"listenPort=1\nbroker\x00Name = b\n")
    with pytest.raises(ConfigError, match=r"broker\.conf:2: .*byte 0x00 is in no text"):
        load_settings(file, environ={})


def test_the_file_of_a_service_names_settings_that_there_are_and_how_to_ask_for_accounts() -> None:
    text = (Path(__file__).parents[4] / "deploy" / "aerobee.toml").read_text()
    full = re.sub(r"(?m)^#(?=[a-z_]+ = )", "", text)
    known = {one.full_key for one in SETTINGS}
    named = {
        f"{section}.{key}" for section, members in tomllib.loads(full).items() for key in members
    }
    assert named <= known
    assert {"access.acl_enabled", "access.acl_file", "tls.certificate_path"} <= named


@pytest.mark.parametrize("text", ["a:9876;b:9876", "a:9876,b:9876", " a:9876 , b:9876;a:9876;"])
def test_name_servers_may_be_joined_by_a_comma_everywhere(text: str) -> None:
    """In the configuration, in a client's addresses, and in Spark's option nameServer."""
    expected = ("a:9876", "b:9876")
    loaded = load_settings(environ={}, flags={"name_servers": text})
    assert loaded.settings.name_server_list == expected
    assert parse_addresses(text) == parse_addresses([text]) == expected
    options = topic_options({"nameServer": text}, ACCESS_OPTIONS, lambda name: None)
    assert read_access(options).name_servers == expected
