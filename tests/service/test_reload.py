"""SIGHUP: a running daemon reads its configuration again, and takes over what may change."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aerobee.config.model import SETTINGS
from aerobee.protocol.codes import RequestCode, ResponseCode
from tests.ports import free_port
from tests.service.kit import SMALL_STORE, Served, Wire, aerobee, metric, wait_until

Serve = Callable[..., Served]
SYSTEM_ERROR, SYSTEM_BUSY, MESSAGE_ILLEGAL = 1, 2, 13
TOPIC_NOT_EXIST, PULL_NOT_FOUND, GROUP_NOT_EXIST = 17, 19, 26
IDS_CHANGED = 40
# Settings that the tests below change in a running daemon, and see taking effect.
TESTED = {
    "log.level",
    "broker.permission",
    "limits.max_topics",
    "limits.max_queues",
    "limits.max_queues_per_topic",
    "limits.max_groups",
    "limits.held_pulls",
    "limits.held_pull_bytes",
    "limits.client_bytes",
    "limits.max_sql_chars",
    "limits.max_sql_depth",
    "limits.max_sql_nodes",
    "limits.sql_filter_bytes",
    "limits.pending_transactions",
    "limits.stage_state_bytes",
    "limits.timer_messages",
    "limits.timer_recalls",
    "delivery.timer_enabled",
    "delivery.timer_max_delay_seconds",
    "delivery.timer_roll_window_seconds",
    "topics.auto_create_per_minute",
    "retention.hours",
    "retention.delete_hours",
    "retention.disk_max_used_percent",
    "retention.clean_forcibly",
    "scrub.bytes_per_second",
    "scrub.processor_percent",
    "drain.timeout_ms",
    "drain.route_refresh_ms",
}


class Configured:
    """A daemon with a file of settings of its own."""

    def __init__(self, serve: Serve, folder: Path, text: str) -> None:
        self._file = folder / "aerobee.toml"
        self._file.write_text(text)
        self.daemon: Served = serve("-c", str(self._file), "--set", "log.format=text").ready()

    def change(self, text: str, *, says: str = "configuration read again") -> None:
        """Write the file anew, ask for it, and wait until the daemon has said so."""
        self._file.write_text(text)
        before = len(self.daemon.log)
        self.daemon.process.send_signal(signal.SIGHUP)
        self.daemon.wait_for("READY=1")
        wait_until(lambda: says in self.daemon.log[before:], f"the log says {says}")


def topic_of(wire: Wire, name: str, queues: int) -> tuple[int, str]:
    """Create a topic; the answer's code and remark."""
    answer = wire.call(
        17,
        {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        },
    )  # fmt: skip
    return answer.code, answer.remark or ""


def test_every_setting_that_may_change_is_tested_here() -> None:
    assert {setting.full_key for setting in SETTINGS if setting.live} <= TESTED


def test_limits_of_topics_and_queues_change(serve: Serve, tmp_path: Path) -> None:
    low = "[limits]\nmax_topics = 16\nmax_queues = 1300\nmax_queues_per_topic = 16\n"
    broker = Configured(serve, tmp_path, low)
    with Wire(broker.daemon.port) as wire:
        codes = [wire.send_message(f"T{number}", b"x").code for number in range(16)]
        assert codes[-1] == TOPIC_NOT_EXIST
        assert "queues must be 1 to 16" in topic_of(wire, "T0", 20)[1]
        high = "[limits]\nmax_topics = 40\nmax_queues = 1300\nmax_queues_per_topic = 2000\n"
        # The new file contradicts itself, so nothing of it is taken.
        broker.change(high, says="configuration not taken, nothing changed")
        assert wire.send_message("more", b"x").code == TOPIC_NOT_EXIST
        broker.change(high.replace("2000", "250"))
        assert wire.send_message("more", b"x").code == 0
        assert topic_of(wire, "T0", 20) == (0, "")
        assert "would pass the limit of 1300" in topic_of(wire, "T0", 250)[1]
        broker.change(high.replace("2000", "250").replace("1300", "1900"))
        assert topic_of(wire, "T0", 250) == (0, "")
        broker.change(low)
        assert wire.send_message("T0", b"x").code == 0
        assert wire.send_message("and more", b"x").code != 0
    assert metric(broker.daemon, 'aerobee_limit_used_ratio{limit="limits.max_topics"}') > 1


def test_limit_of_groups_changes(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\nmax_groups = 16\n")
    with Wire(broker.daemon.port) as wire:

        def create(name: str) -> int:
            return wire.call(200, {}, b'{"groupName":"%b"}' % name.encode()).code

        codes = [create(f"g{number}") for number in range(17)]
        assert (codes[0], codes[-1]) == (0, SYSTEM_ERROR)
        pull = pull_of("invented", "*")
        assert wire.call(11, pull).code == GROUP_NOT_EXIST
        broker.change("[limits]\nmax_groups = 40\n")
        assert create("g16") == 0
        wire.send_message("T", b"x")
        assert wire.call(11, pull).code == 0
        broker.change("[limits]\nmax_groups = 16\n")
        assert create("g17") == SYSTEM_ERROR
        assert wire.call(11, pull_of("another", "*")).code == GROUP_NOT_EXIST


def test_limits_of_pulls_that_wait_change(serve: Serve, tmp_path: Path) -> None:
    low = "[limits]\nheld_pulls = 1\nheld_pull_bytes = 1048576\n"
    broker = Configured(serve, tmp_path, low)
    many_tags = "||".join(f"t{number}" for number in range(20_000))
    with Wire(broker.daemon.port) as first, Wire(broker.daemon.port) as second:
        second.send_message("T", b"x")
        # Its tags take more than all pulls may.
        assert second.call(11, pull_of("g", many_tags, offset=1)).code == PULL_NOT_FOUND
        first.ask(11, pull_of("g", "*", offset=1))
        held_pulls(broker.daemon, 1)
        assert second.call(11, pull_of("g", "*", offset=1)).code == PULL_NOT_FOUND
        broker.change(low.replace("held_pulls = 1", "held_pulls = 9"))
        assert second.call(11, pull_of("g", many_tags, offset=1)).code == PULL_NOT_FOUND
        second.ask(11, pull_of("g", "*", offset=1))
        held_pulls(broker.daemon, 2)
        broker.change("[limits]\nheld_pulls = 9\nheld_pull_bytes = 67108864\n")
        with Wire(broker.daemon.port) as third:
            third.ask(11, pull_of("g", many_tags, offset=1))
            held_pulls(broker.daemon, 3)


def test_limit_of_bytes_of_clients_changes(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\nclient_bytes = 1048576\n")
    tags = "||".join(f"t{number}" for number in range(1_000))
    subscriptions = [
        {"topic": f"T{number}", "subString": tags, "subVersion": 1} for number in range(20)
    ]
    consumer = {"groupName": "g", "subscriptionDataSet": subscriptions}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    used = 'aerobee_limit_used_ratio{limit="limits.client_bytes"}'
    with Wire(broker.daemon.port) as wire:
        refused = wire.call(34, {}, body)
        assert refused.code == SYSTEM_ERROR
        assert "limits.client_bytes" in (refused.remark or "")
        assert metric(broker.daemon, used) == 0
        broker.change("[limits]\nclient_bytes = 8388608\n")
        wire.ask(34, {}, body)
        assert [wire.answer().code, wire.answer().code] == [IDS_CHANGED, 0]
        assert 0.1 < metric(broker.daemon, used) < 1
    wait_until(lambda: metric(broker.daemon, used) == 0, "the client has left")


@pytest.mark.parametrize(
    ("low", "high", "expression"),
    [
        ("max_sql_chars = 64", "max_sql_chars = 8192", " OR ".join(["a IS NULL"] * 9)),
        ("max_sql_depth = 1", "max_sql_depth = 64", "NOT (NOT (a IS NULL))"),
        ("max_sql_nodes = 1", "max_sql_nodes = 512", "a IS NULL OR b IS NULL"),
    ],
)
def test_limits_of_expressions_change(
    serve: Serve, tmp_path: Path, low: str, high: str, expression: str
) -> None:
    broker = Configured(serve, tmp_path, f"[limits]\n{low}\n")
    pull = {**pull_of("g", expression), "expressionType": "SQL92"}
    with Wire(broker.daemon.port) as wire:
        wire.send_message("T", b"x")
        refused = wire.call(11, pull)
        assert (refused.code, low.split()[0] in (refused.remark or "")) == (23, True), refused
        broker.change(f"[limits]\n{high}\n")
        assert wire.call(11, pull).code == 0


def test_limit_of_filters_of_groups_changes(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\nsql_filter_bytes = 1048576\n")
    subscriptions = [
        {
            "topic": f"T{number}", "subString": f"a = '{number}{'x' * 8_000}'", "subVersion": 1,
            "expressionType": "SQL92",
        }
        for number in range(150)
    ]  # fmt: skip
    consumer = {"groupName": "g", "subscriptionDataSet": subscriptions}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    with Wire(broker.daemon.port) as wire:
        wire.ask(34, {}, body)
        # The group has its member and the filters for which there was room.
        refused, joined = sorted((wire.answer(), wire.answer()), key=lambda one: one.code)
        assert (refused.code, joined.code) == (SYSTEM_ERROR, IDS_CHANGED)
        assert "limits.sql_filter_bytes" in (refused.remark or "")
        broker.change("[limits]\nsql_filter_bytes = 67108864\n")
        assert wire.call(34, {}, body).code == 0


def test_limit_of_transactions_changes(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\npending_transactions = 16\n")
    half = {"TRAN_MSG": "true", "PGROUP": "PG"}
    with Wire(broker.daemon.port) as wire:
        codes = [wire.send_message("T", b"x", **half).code for _ in range(17)]
        assert codes == [0] * 16 + [SYSTEM_BUSY]
        broker.change("[limits]\npending_transactions = 17\n")
        assert [wire.send_message("T", b"x", **half).code for _ in range(2)] == [0, SYSTEM_BUSY]


def test_memory_for_staged_batches_changes(serve: Serve, tmp_path: Path) -> None:
    low = "[limits]\nstage_state_bytes = 1048576\n"
    broker = Configured(serve, tmp_path, low)
    parts = [
        {
            "broker": "elsewhere", "partition": 0, "stage": f"{number:032x}",
            "chunks": 0, "rows": 0, "checksum": 0,
        }
        for number in range(2000)
    ]  # fmt: skip
    body, batch = json.dumps(parts).encode(), {"query": "q", "batch": "1"}
    with Wire(broker.daemon.port) as wire:
        refused = wire.call(RequestCode.STAGE_INTENT, batch, body)
        assert (refused.code, "stage_state_bytes" in (refused.remark or "")) == (SYSTEM_BUSY, True)
        broker.change(low.replace("1048576", "2097152"))
        assert wire.call(RequestCode.STAGE_INTENT, batch, body).code == 0


def test_the_permission_of_the_broker_changes(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[broker]\npermission = 6\n")
    pull = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    with Wire(broker.daemon.port) as wire:
        assert wire.send_message("T", b"x").code == 0
        assert wire.call(RequestCode.PULL_MESSAGE, pull).code != ResponseCode.NO_PERMISSION
        broker.change("[broker]\npermission = 2\n")
        assert wire.call(RequestCode.PULL_MESSAGE, pull).code == ResponseCode.NO_PERMISSION
        broker.change("[broker]\npermission = 6\n")
        assert wire.call(RequestCode.PULL_MESSAGE, pull).code != ResponseCode.NO_PERMISSION


def test_rules_of_times_change(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[delivery]\ntimer_enabled = false\n")
    hour = {"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "A" * 32}
    with Wire(broker.daemon.port) as wire:
        assert wire.send_message("T", b"x", **hour).code == MESSAGE_ILLEGAL
        broker.change("[delivery]\ntimer_max_delay_seconds = 60\n")
        refused = wire.send_message("T", b"x", **hour)
        assert (refused.code, "60" in (refused.remark or "")) == (MESSAGE_ILLEGAL, True)
        low = "[limits]\ntimer_messages = 1\ntimer_recalls = 1\n"
        broker.change(low)
        sent = wire.send_message("T", b"x", **hour)
        assert sent.code == 0, sent.remark
        full = wire.send_message("T", b"x", **hour)
        assert full.code != 0
        assert "limits.timer_messages" in (full.remark or "")
        broker.change(low.replace("timer_messages = 1", "timer_messages = 100"))
        assert wire.send_message("T", b"x", **hour).code == 0

        recall = {"topic": "T", "recallHandle": sent.ext["recallHandle"]}
        assert wire.call(370, recall).code == 0
        assert wire.call(370, recall).code == SYSTEM_BUSY
        broker.change("[limits]\ntimer_recalls = 9\n")
        assert wire.call(370, recall).code == 0

        # A window of two seconds has what waits longer stored again within them.
        assert metric(broker.daemon, "aerobee_timer_rolled_messages_total") == 0
        broker.change("[delivery]\ntimer_roll_window_seconds = 2\n")
        assert wire.send_message("T", b"x", **hour).code == 0
        wait_until(
            lambda: metric(broker.daemon, "aerobee_timer_rolled_messages_total") > 0, "it rolls"
        )


def pull_of(group: str, tags: str, offset: int = 0) -> dict[str, str]:
    """A pull of queue 0 of the topic T that may wait and brings its filter."""
    return {
        "consumerGroup": group, "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000",
        "subscription": tags, "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip


def held_pulls(daemon: Served, count: int) -> None:
    wait_until(lambda: metric(daemon, "aerobee_held_pulls") == count, f"{count} pulls wait")


def test_topics_that_sends_may_make_in_a_minute(serve: Serve, tmp_path: Path) -> None:
    section = next(s.section for s in SETTINGS if s.name == "auto_create_per_minute")
    broker = Configured(serve, tmp_path, f"[{section}]\nauto_create_per_minute = 1\n")
    with Wire(broker.daemon.port) as wire:
        codes = {wire.send_message(f"T{number}", b"x").code for number in range(4)}
        assert codes == {0, TOPIC_NOT_EXIST}  # two of them where a minute ends in between
        broker.change(f"[{section}]\nauto_create_per_minute = 100\n")
        assert {wire.send_message(f"U{number}", b"x").code for number in range(9)} == {0}


def test_level_of_the_log_changes_and_both_directions_are_seen(
    serve: Serve, tmp_path: Path
) -> None:
    broker = Configured(serve, tmp_path, '[log]\nlevel = "WARNING"\n')
    broker.change('[log]\nlevel = "INFO"\n', says="setting changed key=log.level")
    broker.change('[log]\nlevel = "ERROR"\n[http]\nhost = "::1"\n', says="")
    broker.daemon.terminate()
    assert broker.daemon.wait() == 0
    after = broker.daemon.log.partition("configuration read again")[2]
    assert "key=http.host" not in after  # a warning
    assert "stopped" not in after


def test_what_needs_a_restart_is_named_and_stays(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\nconnections = 100\n")
    broker.change(
        '[limits]\nconnections = 200\n[scrub]\nbytes_per_second = 0\n[log]\nlevel = "DEBUG"\n'
    )
    log = broker.daemon.log
    text = "setting not changed, it needs a restart"
    assert f'{text} key=limits.connections value="100" configured="200"' in log
    assert f'{text} key=scrub.bytes_per_second value="16777216" configured="0"' in log
    assert 'setting changed key=log.level value="DEBUG" before="INFO"' in log
    assert metric(broker.daemon, 'aerobee_connections_open{server="broker"}') < 100


def test_a_broken_file_changes_nothing_and_says_why(serve: Serve, tmp_path: Path) -> None:
    broker = Configured(serve, tmp_path, "[limits]\nmax_topics = 16\n")
    wrong = "limits]\nmax_topics = 40\n"
    broker.change(wrong, says="configuration not taken, nothing changed")
    broker.change(
        '[limits]\nmax_topics = 40\nmax_tropics = 1\n[log]\nlevel = "LOUD"\n', says="max_tropics"
    )
    assert "LOUD" in broker.daemon.log
    with Wire(broker.daemon.port) as wire:
        codes = [wire.send_message(f"T{number}", b"x").code for number in range(16)]
    assert codes[-1] == TOPIC_NOT_EXIST
    assert broker.daemon.get("/live")[0] == 200


def test_retention_is_asked_by_the_new_settings(serve: Serve, tmp_path: Path) -> None:
    """The running broker shows the settings; a test with a clock holds that its runs go by them."""
    broker = Configured(serve, tmp_path, "[retention]\nhours = 10\n")
    with Wire(broker.daemon.port) as wire:
        assert b"fileReservedTime=10\n" in wire.call(26, {}).body
        broker.change(
            '[retention]\nhours = 20\ndelete_hours = "05;06"\ndisk_max_used_percent = 80\n'
            "clean_forcibly = false\n"
        )
        shown = wire.call(26, {}).body.decode().splitlines()
    assert {
        "fileReservedTime=20", "deleteWhen=05;06", "diskMaxUsedSpaceRatio=80",
        "cleanFileForciblyEnable=false",
    } <= set(shown)  # fmt: skip


def test_rates_of_the_scrub_change_in_the_middle_of_a_wait(serve: Serve, tmp_path: Path) -> None:
    """At one byte a second the first pass would take days."""
    broker = Configured(serve, tmp_path, "[scrub]\nbytes_per_second = 1\nprocessor_percent = 1\n")
    with Wire(broker.daemon.port) as wire:
        for _ in range(20):
            assert wire.send_message("T", bytes(10_000)).code == 0
    broker.change("[scrub]\nbytes_per_second = 100000000\nprocessor_percent = 100\n")
    changed = 'setting changed key=scrub.processor_percent value="100" before="1"'
    assert changed in broker.daemon.log
    passes = "aerobee_scrub_passes_total"
    wait_until(lambda: metric(broker.daemon, passes) >= 1, "a pass of the scrub")


def test_a_name_server_alone_takes_a_new_level_and_says_what_is_not_its_own(tmp_path: Path) -> None:
    file, log = tmp_path / "n.toml", tmp_path / "log"
    file.write_text('[log]\nlevel = "WARNING"\n')
    with log.open("wb") as stream:
        words = [*aerobee(), "nameserver", "-c", str(file), "--port", "0"]
        process = subprocess.Popen(
            [*words, "--set", "aclEnable=true"], stdout=stream, stderr=stream
        )
    try:
        wait_until(lambda: "ready" in log.read_text(), "the name server is ready")
        assert "asks for accounts with namesrvAclEnable=true" in log.read_text()
        file.write_text('[log]\nlevel = "INFO"\n')
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "setting changed" in log.read_text(), "the level was changed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.parametrize("command", ["serve", "nameserver"])
def test_a_signal_during_the_start_is_remembered(command: str, tmp_path: Path) -> None:
    """Sent again and again from the moment the signal is taken until the daemon is ready."""
    arguments = ["--store", str(tmp_path / "store"), "--port", str(free_port())]
    if command == "serve":
        arguments += ["--nameserver-port", "0", "--http-port", "0"]
        for setting in ("broker.vip_port_enabled=false", *SMALL_STORE):
            arguments += ["--set", setting]
    else:
        arguments = arguments[2:]
    arguments += ["--set", "log.format=text", "--set", "log.level=INFO"]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen([*aerobee(), command, *arguments], stdout=stream, stderr=stream)
    try:
        wait_until(lambda: catches_hangup(process.pid) or process.poll() is not None, "taken")
        assert not log.read_text()  # nothing has been done yet
        sent = 0
        while "\nready" not in log.read_text():
            process.send_signal(signal.SIGHUP)
            sent += 1
            assert process.poll() is None, f"ended after {sent} signals; {log.read_text()}"
            time.sleep(0.02)
        wait_until(lambda: "configuration read again" in log.read_text(), "a reload")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


def catches_hangup(pid: int) -> bool:
    """Whether the process has a handler for SIGHUP (proc(5), `SigCgt`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGHUP - 1) & 1)


@pytest.mark.parametrize("command", ["serve", "nameserver"])
def test_closing_the_terminal_stops_in_order(command: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, command) as terminal:
        terminal.reload()
        terminal.close()
        assert terminal.process.wait(30) == 0
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize("command", ["serve", "nameserver"])
def test_a_daemon_that_is_to_outlive_its_terminal_does(command: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, command, "nohup") as terminal:
        terminal.reload()
        terminal.close()
        terminal.reload()


class Terminal:
    """A daemon in a terminal of its own, which tells it alone when it is closed."""

    def __init__(self, folder: Path, command: str, *prefix: str) -> None:
        self._log = folder / "log"
        words = [*prefix, *aerobee(), command, "--port", str(free_port())]
        if command == "serve":
            words += ["--store", str(folder / "store"), "--nameserver-port", "0"]
            words += ["--http-port", "0"]
            for setting in ("broker.vip_port_enabled=false", *SMALL_STORE):
                words += ["--set", setting]
        self._master, terminal = os.openpty()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, "--set", "log.format=text"],
                stdin=terminal,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(terminal)

    def __enter__(self) -> Terminal:
        wait_until(lambda: "\nready" in self._log.read_text(), "ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.process.kill()
        self.process.wait(30)

    def reload(self) -> None:
        """Have the configuration read again, and wait until it was."""
        before = len(self._log.read_text())
        self.process.send_signal(signal.SIGHUP)
        says = "configuration read again"
        wait_until(lambda: says in self._log.read_text()[before:], "a reload")

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


def test_the_times_of_a_drain_change(serve: Serve, tmp_path: Path) -> None:
    other = serve("--set", "broker.name=other").ready()
    names = f'[broker]\nname_servers = "127.0.0.1:{other.name_server_port}"\n'
    slow = "[drain]\ntimeout_ms = 600000\nroute_refresh_ms = 600000\n"
    broker = Configured(partial(serve, folder="drained"), tmp_path, names + slow)

    def is_taken() -> bool:
        with Wire(other.name_server_port) as wire:
            return wire.call(105, {"topic": "T"}).body.decode().count("brokerName") >= 4

    for one in (other, broker.daemon):
        with Wire(one.port) as wire:
            assert wire.send_message("T", b"x").code == 0
    wait_until(is_taken, "both have the topic")
    producer = {"clientID": "c", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
    with Wire(broker.daemon.port) as wire:
        # While it is connected it may send by an old route.
        assert wire.call(34, {}, json.dumps(producer).encode()).code == 0
        for quick in ("route_refresh_ms = 1\ntimeout_ms = 600000\n", "timeout_ms = 1000\n"):
            assert drain(broker.daemon, "POST", "/drain")["state"] == "draining"
            broker.change(f"{names}[drain]\n{quick}")
            wait_until(lambda: drain(broker.daemon, "GET", "/drain")["state"] == "drained", quick)
            assert drain(broker.daemon, "POST", "/drain?undo=true")["state"] == "serving"
            broker.change(names + slow)


def drain(daemon: Served, method: str, path: str) -> dict[str, object]:
    """The state of a drain, by the HTTP port."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=10)
    try:
        connection.request(method, path)
        found: dict[str, object] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()
