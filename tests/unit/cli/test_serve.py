"""`aerobee serve` and `aerobee nameserver` as processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aerobee.broker.cluster.registration.broker_address import ReservedPorts
from aerobee.config.ports import VIP_BELOW
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.remoting.calling.blocking_caller import BlockingCaller, ConnectOptions
from tests.ports import free_port


class Served:
    """A daemon started by its command; `lines` are what it said on standard error until ready."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        kept = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aerobee.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"AEROBEE__LOG__FORMAT": "text", **kept, **environment},
            text=True,
        )
        self._watchdog = threading.Timer(60, self.process.kill)
        self._watchdog.start()
        self.lines: list[str] = []

    def wait_ready(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith("ready") or '"event": "ready"' in line:
                return "\n".join(self.lines)
        raise AssertionError("\n".join(self.lines))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._watchdog.cancel()


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[Served]:
    daemon = Served(*arguments, **environment)
    try:
        yield daemon
    finally:
        daemon.end()


def run_client(name_server: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "aerobee.cli", *arguments, "-n", name_server]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def client(name_server: str, *arguments: str) -> str:
    done = run_client(name_server, *arguments)
    done.check_returncode()
    return done.stdout


def name_server_of(text: str) -> str:
    match = re.search(r"name servers\s+(\S+:\d+)", text)
    assert match, text
    return match[1]


def test_dev_says_its_addresses_works_and_leaves_nothing(tmp_path: Path) -> None:
    with served("serve", "--dev", TMPDIR=str(tmp_path)) as daemon:
        text = daemon.wait_ready()
        address = name_server_of(text)
        client(address, "message", "send", "first", "hello")
        assert "hello" in client(address, "message", "pull", "first")
        assert str(tmp_path) in text
        assert daemon.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_messages_outlive_the_process(tmp_path: Path) -> None:
    arguments = ("serve", "--dev", "--store", str(tmp_path / "store"))
    with served(*arguments) as daemon:
        client(name_server_of(daemon.wait_ready()), "message", "send", "kept", "still here")
        assert daemon.stop(signal.SIGINT) == 0
    with served(*arguments) as daemon:
        address = name_server_of(daemon.wait_ready())
        assert "still here" in client(address, "message", "pull", "kept")
        assert daemon.stop() == 0


def test_port_0_turns_a_part_off(tmp_path: Path) -> None:
    with served(
        *("serve", "--store", str(tmp_path), "--port", "0", "--nameserver-port", "0"),
        *("--http-port", "0", "--set", "store.commit_log_segment_bytes=16777216"),
    ) as daemon:
        text = daemon.wait_ready()
        assert "name servers" not in text
        assert "http://" not in text
        assert daemon.stop() == 0


def test_a_port_in_use_exits_3_and_names_it(tmp_path: Path) -> None:
    with served("serve", "--dev", TMPDIR=str(tmp_path)) as first:
        text = first.wait_ready()
        port = re.search(r"clients are told\s+\S+:(\d+)", text)
        assert port, text
        with served("serve", "--dev", "--port", port[1], TMPDIR=str(tmp_path)) as second:
            _, err = second.process.communicate(timeout=60)
            assert second.process.returncode == 3
            assert port[1] in err
            assert "Traceback" not in err


def test_all_ports_in_use_are_told_at_once_with_what_moves_them(tmp_path: Path) -> None:
    with ExitStack() as taken:
        ports = ReservedPorts("127.0.0.1")
        port = ports.port
        ports.release()
        held = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        for number in (port, port - VIP_BELOW):
            taken.enter_context(socket.create_server(("127.0.0.1", number)))
        name_server, http = (one.getsockname()[1] for one in held)
        arguments = ("--store", str(tmp_path), "--port", str(port))
        more = ("--nameserver-port", str(name_server), "--http-port", str(http))
        with served("serve", *arguments, *more) as daemon:
            _, err = daemon.process.communicate(timeout=60)
    assert daemon.process.returncode == 3
    assert err.splitlines()[-5:] == [
        "aerobee: cannot start: 4 ports are in use; is another broker running?",
        f"  127.0.0.1:{port}  --port N or broker.listen_port",
        f"  127.0.0.1:{port - 2}  it moves with --port; --set broker.vip_port_enabled=false "
        "turns it off",
        f"  127.0.0.1:{name_server}  --nameserver-port N or nameserver.port; 0 turns it off",
        f"  127.0.0.1:{http}  --http-port N or http.port; 0 turns it off",
    ]
    assert list(tmp_path.glob("*/*")) == [], "nothing was begun"


def test_a_store_in_use_exits_1_and_names_it(tmp_path: Path) -> None:
    arguments = ("serve", "--dev", "--store", str(tmp_path))
    with served(*arguments) as first:
        first.wait_ready()
        with served(*arguments) as second:
            _, err = second.process.communicate(timeout=60)
            assert second.process.returncode == 1
            assert str(tmp_path) in err
            assert "Traceback" not in err


def test_a_wrong_broker_conf_exits_78(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerRole=SLAVE\nbrokerId=0\n")
    with served("serve", "-c", str(file)) as daemon:
        _, err = daemon.process.communicate(timeout=60)
        assert daemon.process.returncode == 78
        assert f"{file}:2: brokerId = 0: a slave's must be above 0" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_name_server_runs_alone(tmp_path: Path, number: signal.Signals) -> None:
    with served("nameserver", "--port", "0", "--set", f"store.path={tmp_path}") as daemon:
        match = re.search(r"name server at (127\.0\.0\.1:\d+)", daemon.wait_ready())
        assert match
        done = run_client(match[1], "topic", "list", "--all")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no broker is registered" in done.stderr, "so it has answered"
        assert daemon.stop(number) == 0


def test_a_name_server_alone_takes_the_port_of_rocketmqs_file(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "namesrv.conf"
    file.write_text(f"kvConfigPath={tmp_path}/kv.json\nlistenPort={port}\n")
    with served("nameserver", "-c", str(file)) as daemon:
        text = daemon.wait_ready()
        assert f"name server at 127.0.0.1:{port}\n" in text
        assert "broker.listen_port" not in text
        # The command line wins, and the log does not say that the file had the setting.
        with served("nameserver", "-c", str(file), "--port", "0") as other:
            text = other.wait_ready()
            assert f"{file}:2" not in text
            assert f"127.0.0.1:{port}" not in text
            assert other.stop() == 0
        assert daemon.stop() == 0


@pytest.mark.parametrize("command", ["serve --dev", "nameserver --port 0"])
def test_a_registration_is_inflated_as_far_as_the_settings_say(
    tmp_path: Path, command: str
) -> None:
    settings = ("limits.max_inflated_bytes=65536", f"store.path={tmp_path}")
    words = [word for setting in settings for word in ("--set", setting)]
    with served(*command.split(), *words) as daemon:
        match = re.search(r"name servers?\s+(?:at )?(127\.0\.0\.1:\d+)", daemon.wait_ready())
        assert match
        caller = BlockingCaller(match[1], ConnectOptions(timeout_s=30))
        ext = {"brokerName": "far", "brokerAddr": "10.0.0.1:10911", "clusterName": "C"}
        ext |= {"brokerId": "0", "haServerAddr": "10.0.0.1:10912", "compressed": "true"}
        body = zlib.compress(bytes(65_537))
        answer = caller.call(
            Command(code=RequestCode.REGISTER_BROKER, opaque=1, ext=ext, body=body)
        )
        caller.close()
        assert "inflates to more than 65536 bytes" in str(answer.remark)
        assert daemon.stop() == 0


def test_a_broker_registers_with_a_name_server_elsewhere(tmp_path: Path) -> None:
    with served("nameserver", "--port", "0", "--set", f"store.path={tmp_path}") as alone:
        match = re.search(r"name server at (\S+)", alone.wait_ready())
        assert match
        with served("serve", "--dev", "-n", match[1]) as broker:
            assert name_server_of(broker.wait_ready()).rstrip(";") == match[1]
            client(match[1], "message", "send", "far", "away")
            assert broker.stop() == 0
        assert alone.stop() == 0


def test_a_second_broker_of_one_name_says_so_at_its_start(tmp_path: Path) -> None:
    arguments = ("serve", "--dev", "--set", "brokerName=twin")
    with served(*arguments, TMPDIR=str(tmp_path)) as first:
        text = first.wait_ready()
        address = name_server_of(text)
        told = re.search(r"clients are told\s+(\S+)", text)
        assert told
        with served(*arguments, "-n", address, TMPDIR=str(tmp_path)) as second:
            text = second.wait_ready()
            (warning,) = [line for line in second.lines if line.startswith("  warning")]
            assert f"another broker, at {told[1]}, is registered as twin with id 0" in warning
            assert "brokerName" in warning


def test_each_line_of_a_log_in_json_is_json_the_start_too(tmp_path: Path) -> None:
    """Collectors of logs read standard error line by line."""
    options = "--set", "log.format=json", "--set", "log.level=WARNING"
    with served("serve", "--dev", *options) as daemon:
        ready = json.loads(daemon.wait_ready().splitlines()[-1])
        assert ready["event"] == "ready"
        assert ready["address"].rpartition(":")[2].isdecimal()
        assert {"version", "broker", "name_servers", "store", "seconds"} <= ready.keys()
        assert daemon.stop() == 0
        for line in daemon.lines:
            assert json.loads(line)["ts"], line
    with served("nameserver", "--port", "0", *options) as daemon:
        lines = daemon.wait_ready().splitlines()
        assert [json.loads(line)["event"] for line in lines][-1] == "ready"
        assert json.loads(lines[-1])["address"].startswith("127.0.0.1:")
