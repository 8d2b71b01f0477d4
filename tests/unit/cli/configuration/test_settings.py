"""`aerobee config` and the settings flags of `serve`, without starting anything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.cli.arguments.parser import build_parser
from aerobee.cli.main import main
from aerobee.config.loading.load import load_settings
from aerobee.config.model import SETTINGS


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ("NAMESRV_ADDR", "ROCKETMQ_HOME") or name.startswith("AEROBEE_"):
            monkeypatch.delenv(name)


def conf(tmp_path: Path, text: str) -> str:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    return str(file)


def test_show_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [item["setting"] for item in shown] == [setting.full_key for setting in SETTINGS]


def test_show_with_origin_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(tmp_path, "brokerName=bee\n")
    arguments = ["config", "show", "-c", file, "--set", "listenPort=5", "--origin", "--changed"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "UNIT", "FROM", "EFFECT"]
    assert lines[1].split() == ["broker.listen_port", "5", "--set"]
    assert lines[2].split() == ["broker.name", "bee", f"{file}:1"]


def test_secrets_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(tmp_path, "tls.server.keyPassword=hunter2\n")
    for arguments in (["show", "-c", file], ["show", "-c", file, "--json"], ["check", file]):
        assert main(["config", *arguments]) == 0
    assert main(["serve", "-c", file, "-p"]) == 0
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert "***" in captured.out


def test_check_accepts_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", conf(tmp_path, "bindAddress=127.0.0.1\n")]) == 0
    assert "properties, 1 settings, 0 warnings" in capsys.readouterr().err


def test_check_stops_at_a_wrong_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(tmp_path, "listenPort=many\n")
    assert main(["config", "check", file]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}:1: listenPort = many: must be a whole number" in captured.err


def test_check_of_a_wrong_file_has_its_warnings_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf(tmp_path, "listenPort=many\nbrokerNam=bee\nbrokerId=0\nbrokerId=0\n")
    assert main(["config", "check", file]) == 78
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["warning", "warning", "aerobee"]
    assert "brokerId is set twice" in lines[0]
    assert "brokerNam: unknown setting" in lines[1]
    assert main(["config", "check", "--json", file]) == 78
    report = json.loads(capsys.readouterr().out)
    assert (len(report["errors"]), len(report["warnings"])) == (1, 2)


def test_check_strict_fails_on_warnings(tmp_path: Path) -> None:
    file = conf(tmp_path, "bindAddress=127.0.0.1\nbrokerId=3\n")
    assert main(["config", "check", file]) == 0
    assert main(["config", "check", "--strict", file]) == 78


_SLAVE = "brokerRole=SLAVE\nbrokerId=1\nbrokerName=a\nhaMasterAddress="


@pytest.mark.parametrize(
    ("master", "listens"),
    [
        ("10.99.0.2:10912", "bindAddress=0.0.0.0\nbrokerIP1=10.99.0.2\n"),
        ("10.99.0.2:10912", "bindAddress=10.99.0.2\n"),
        ("10.99.0.2:10912", "bindAddress=0.0.0.0\nbrokerIP1=10.0.0.1\nbrokerIP2=10.99.0.2\n"),
        ("localhost:10912", "bindAddress=0.0.0.0\nbrokerIP1=10.99.0.2\n"),
        ("127.0.0.1:20912", "listenPort=20911\n"),
    ],
)
def test_check_stops_at_a_slave_that_is_its_own_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], master: str, listens: str
) -> None:
    file = conf(tmp_path, f"{_SLAVE}{master}\n{listens}")
    assert main(["config", "check", file]) == 78
    assert f"{master}: is this slave's own port for slaves" in capsys.readouterr().err
    assert main(["config", "check", "--json", file]) == 78
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], len(report["errors"])) == (False, 1)


def test_check_of_a_slave_knows_of_other_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = "127.0.0.7"  # each machine has it, and it is not the one that all mean
    wide = "bindAddress=0.0.0.0\n"
    # A file of another machine, read where its master runs.
    file = conf(tmp_path, f"{_SLAVE}{here}:10912\n{wide}brokerIP1=10.99.0.2\n")
    assert main(["config", "check", "--strict", file]) == 0
    capsys.readouterr()
    # Only where it runs can it be told whether that is its own address.
    file = conf(tmp_path, f"{_SLAVE}{here}:10912\n{wide}")
    assert main(["config", "check", file]) == 0
    assert "if this file is for this machine, the slave does not" in capsys.readouterr().err
    assert main(["config", "check", "--strict", file]) == 78


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(tmp_path, "bindAddress=127.0.0.1\nbrokerId=3\n")
    assert main(["config", "check", "--json", file]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["settings"], len(report["warnings"])) == ("properties", 2, 1)


def test_p_prints_a_broker_conf_that_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-p", "--port", "5000", "--store", "/data/bee"]) == 0
    printed = capsys.readouterr().out
    assert "listenPort=5000\n" in printed
    loaded = load_settings(conf(tmp_path, printed), environ={}, format="properties", strict=True)
    assert loaded.settings.store_path == "/data/bee"


def test_m_prints_the_important_ones_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-m", "-n", "a:9876;b:9876"]) == 0
    printed = capsys.readouterr().out
    assert "namesrvAddr=a:9876;b:9876\n" in printed
    assert "sendMessageThreadPoolNums" not in printed


def test_wrong_settings_stop_serve_with_78(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--set", "broker.listen_prot=1"]) == 78
    assert "did you mean broker.listen_port?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve", "--port", "70000"],
        ["serve", "--port", "x"],
        ["topic", "create"],
        ["topic", "create", "a", "--queues", "0"],
        ["message", "pull", "a", "--count", "-1"],
        ["message", "query", "a"],
        ["message", "query", "a", "--key", "k", "--id", "i"],
        ["message", "tail", "a", "--timeout", "0"],
        ["serve", "--shards", "0"],
        ["serve", "--shards", "257"],
        ["frobnicate"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_closed_pipe_is_no_error() -> None:
    command = f"'{sys.executable}' -m aerobee.cli config show | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_key_and_keys_of_send_are_both_options_of_their_own() -> None:
    arguments = ["message", "send", "t", "x", "--key", "a", "--keys", "b"]
    assert build_parser().parse_args(arguments).keys == ["a", "b"]
    done = subprocess.run(
        [sys.executable, "-m", "aerobee.cli", "message", "send", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Python 3.13 names the value once.
    assert re.search("--keys( KEY)?, --key KEY", done.stdout)


def test_check_as_json_reports_every_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf(tmp_path, "listenPort=many\nbrokerName=bee\nbrokerRole=KING\ndeleteWhen=25\n")
    assert main(["config", "check", "--json", file]) == 78
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["ok"] is False
    places = [error.split(" = ")[0] for error in report["errors"]]
    assert places == [f"{file}:1: listenPort", f"{file}:3: brokerRole", f"{file}:4: deleteWhen"]
    assert captured.err.splitlines() == [f"aerobee: {error}" for error in report["errors"]]


def test_check_as_json_says_ok_unless_warnings_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf(tmp_path, "brokerId=3\n")
    for arguments, ok in (((), True), (("--strict",), False)):
        main(["config", "check", "--json", *arguments, file])
        report = json.loads(capsys.readouterr().out)
        assert (report["ok"], report["errors"]) == (ok, [])


def test_the_start_reports_every_wrong_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf(tmp_path, "listenPort=many\nbrokerRole=KING\n")
    assert main(["serve", "-c", file, "--set", "broker.listen_prot=1"]) == 78
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("haSlaveAddresses", "Aerobee's haSlaveAddresses"),
        ("haAckDurable", "Aerobee's haAckDurable"),
        ("haEnabled", "Aerobee's haEnabled"),
        ("aclToolsFile", "Aerobee's aclToolsFile"),
        ("namesrvAclEnable", "Aerobee's namesrvAclEnable"),
        ("syncFromLastFile", "RocketMQ 5's syncFromLastFile"),
        ("inSyncReplicas", "RocketMQ 5's inSyncReplicas"),
        ("slaveTimeout", "RocketMQ's slaveTimeout"),
        ("tls.mode", "administrators, slaves, metrics"),
        ("tls.client_trust_path", "name servers and masters"),
        ("tls.client_certificate_path", "as a slave to its master"),
        ("aclToolsFile", "as a slave what it asks of its master"),
    ],
)
def test_explain_says_whose_name_it_is_and_whom_it_concerns(
    capsys: pytest.CaptureFixture[str], key: str, text: str
) -> None:
    assert main(["config", "explain", key]) == 0
    assert text in " ".join(capsys.readouterr().out.split())


def test_explain_tells_what_a_setting_means_by_either_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "explain", "diskSpaceCleanForciblyRatio", "store.flush_disk_type"]) == 0
    text = capsys.readouterr().out
    assert "retention.disk_force_ratio: default 0.85, 0.01 to 1.0" in text
    assert "store.flush_disk_type: default ASYNC_FLUSH" in text
    assert main(["config", "explain", "fileReservedTim"]) == 1
    assert "did you mean retention.hours" in capsys.readouterr().err


def test_force_ratio_above_the_refusal_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf(tmp_path, "diskSpaceCleanForciblyRatio=0.95\n")
    assert main(["config", "check", file]) == 0
    assert "sends are refused above 0.9" in capsys.readouterr().err
    file = conf(tmp_path, "diskSpaceCleanForciblyRatio=0.95\ncleanFileForciblyEnable=false\n")
    assert main(["config", "check", file]) == 0
    assert "sends are refused above" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [(["message", "send", "t", "--tags", "a", "x", "y"], "x y"), (["topic", "list", "x"], "x")],
)
def test_words_that_belong_nowhere_are_refused(
    arguments: list[str], rest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert f"unrecognized arguments: {rest}" in capsys.readouterr().err


def test_an_option_that_is_not_known_is_refused_by_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["message", "send", "t", "body", "--tagz=a"])
    said = capsys.readouterr().err
    assert said.startswith("usage: aerobee message send")
    assert "unrecognized arguments: --tagz=a; did you mean --tags?" in said


def test_show_takes_names_of_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["config", "show", "brokerName", "broker.listen_port", "--json"]) == 0
    captured = capsys.readouterr()
    shown = [item["setting"] for item in json.loads(captured.out)]
    assert shown == ["broker.name", "broker.listen_port"]
    assert "a running broker may have been started otherwise" in captured.err
    assert main(["config", "show", "brokerNam"]) == 1
    err = capsys.readouterr().err
    assert err == "aerobee: there is no setting 'brokerNam'; did you mean broker.name?\n"


def test_show_says_when_nothing_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--changed"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("no setting is changed by a file, the environment or a flag")
