"""Claims about the notify protocol, against a socket that plays the supervisor."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aerobee.broker.monitoring import systemd
from aerobee.broker.monitoring.systemd import Notifier, progress_text

Supervisor = tuple[socket.socket, str]


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisor]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        if request.param == "path":
            name = str(tmp_path / "notify")
            listening.bind(name)
        else:
            name = f"@aerobee-test-{os.getpid()}"
            listening.bind(b"\0" + name[1:].encode())
        yield listening, name


def received(listening: socket.socket) -> str:
    return listening.recv(4096).decode()


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        (lambda n: n.ready(), "READY=1"),
        (lambda n: n.ready("serving"), "READY=1\nSTATUS=serving"),
        (lambda n: n.stopping("draining"), "STOPPING=1\nSTATUS=draining"),
        (lambda n: n.status("recovering 37 %"), "STATUS=recovering 37 %"),
        (lambda n: n.extend_timeout(30), "EXTEND_TIMEOUT_USEC=30000000"),
        (lambda n: n.watchdog(), "WATCHDOG=1"),
    ],
)
def test_message_reaches_the_supervisor(
    supervisor: Supervisor, say: Callable[[Notifier], None], expected: str
) -> None:
    listening, name = supervisor
    notifier = Notifier({"NOTIFY_SOCKET": name})
    say(notifier)
    assert received(listening) == expected
    notifier.close()


def test_line_break_in_a_status_cannot_forge_another_message(supervisor: Supervisor) -> None:
    listening, name = supervisor
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.status("topic a\nSTOPPING=1")
    assert received(listening) == "STATUS=topic a STOPPING=1"
    notifier.close()


def test_without_a_supervisor_nothing_happens() -> None:
    notifier = Notifier({})
    notifier.ready("serving")
    assert not notifier.enabled
    assert notifier.watchdog_interval_s is None


def test_supervisor_that_went_away_is_logged_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    notifier.ready()
    notifier.watchdog()
    assert len(caplog.records) == 1
    notifier.close()


def test_status_waits_neither_for_a_supervisor_that_does_not_read_nor_for_a_thread(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop says it. With the wait of half a second that other messages have, everybody's
    requests stood still for as long, every ten seconds."""
    listening, name = supervisor
    # A sender that waited for room would wait until the test is cut off.
    monkeypatch.setattr(systemd, "_SEND_TIMEOUT_S", None)
    notifier = Notifier({"NOTIFY_SOCKET": name})
    for number in range(10_000):
        notifier.status(f"status {number}")
    received_first = [received(listening) for _ in range(2)]
    assert received_first == ["STATUS=status 0", "STATUS=status 1"]
    notifier.status("once more")
    with notifier._lock:
        notifier.status("never")
    listening.setblocking(False)
    texts = []
    with suppress(BlockingIOError):
        while True:
            texts.append(received(listening))
    assert texts[-1] == "STATUS=once more"
    notifier.close()


def test_unusable_address_disables_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert not Notifier({"NOTIFY_SOCKET": "vsock:2:1234"}).enabled
    assert "vsock:2:1234" in caplog.text


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_fed_twice_as_often_as_asked(
    environ: dict[str, str], expected: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/n", **environ}).watchdog_interval_s == expected


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "expected"),
    [
        (0, 0, 0.0, "reading"),
        (0, 4 << 30, 9.0, "reading 0% (0.0 of 4.0 GiB)"),
        (1 << 30, 4 << 30, 10.0, "reading 25% (1.0 of 4.0 GiB), 107 MB/s, 30 s left"),
        (4 << 30, 4 << 30, 40.0, "reading 100% (4.0 of 4.0 GiB), 107 MB/s, 0 s left"),
    ],
)
def test_progress_says_how_far_and_how_long(
    done: int, total: int, elapsed_s: float, expected: str
) -> None:
    assert progress_text("reading", done, total, elapsed_s) == expected
