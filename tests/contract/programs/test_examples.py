"""The examples run as they are, and what docs/getting-started.md says of the disk is so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.client import Message
from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.config.model import BY_NAME
from aerobee.testing import RunningBroker
from tests.service.kit import wait_until

aerobee_broker = aerobee.testing.aerobee_broker  # the fixture, for this module

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"


def start(name: str, running: RunningBroker) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, "NAMESRV_ADDR": running.name_server},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore it, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_what_produce_sends_consume_prints_and_leaves_cleanly(
    aerobee_broker: RunningBroker,
) -> None:
    produce = start("produce.py", aerobee_broker)
    out, err = produce.communicate(timeout=30)
    assert produce.returncode == 0, err
    assert len(out.splitlines()) == 10
    consume = start("consume.py", aerobee_broker)
    assert consume.stdout is not None
    lines = [consume.stdout.readline() for _ in range(10)]
    consume.send_signal(signal.SIGINT)
    out, err = consume.communicate(timeout=30)
    assert {line.split(maxsplit=2)[2].strip() for line in lines} == {
        f"hello {number}" for number in range(10)
    }
    assert (consume.returncode, out.startswith("left the group"), err) == (0, True, "")


def test_what_transact_commits_is_delivered(
    aerobee_broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCOUNTS", str(tmp_path / "accounts.db"))
    transact = start("transact.py", aerobee_broker)
    out, err = transact.communicate(timeout=30)
    assert (transact.returncode, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [["COMMIT", "True"]] * 10
    with PullConsumer(aerobee_broker.name_server) as consumer:
        ends = [consumer.max_offset(queue) for queue in consumer.queues("paid")]
    assert sum(ends) == 10


def test_without_a_broker_there_is_one_error_and_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "produce.py")],
        env={**os.environ, "NAMESRV_ADDR": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback"), done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert done.stderr.endswith("Connection refused (is a broker running?)\n")


def test_what_a_new_store_takes_on_disk_is_what_the_guide_says(tmp_path: Path) -> None:
    """One segment while it is empty, two from the first message on, and next to nothing besides."""

    segment = 1 << 20

    def segments_on_disk() -> int:
        """A file system may need some blocks more, to keep a file in pieces."""
        paths = (tmp_path / "commitlog").iterdir()
        return round(sum(path.stat().st_blocks * 512 for path in paths) / segment)

    settings = {"store_path": str(tmp_path), "commit_log_segment_bytes": segment}
    with aerobee.testing.broker(**settings, max_message_bytes=100_000) as running:
        wait_until(lambda: segments_on_disk() == 1, "the first one is made, ahead of need")
        with Producer(running.name_server) as producer:
            producer.send(Message("Orders", b"x"))
        wait_until(lambda: segments_on_disk() == 2, "the next one is reserved")
    default = BY_NAME["commit_log_segment_bytes"].default
    assert isinstance(default, int)
    guide = " ".join((ROOT / "docs" / "getting-started.md").read_text().split())
    assert (
        f"{default / 1e9:.1f} GB while it is empty, {2 * default / 1e9:.1f} GB from its first "
        "message on"
    ) in guide
    small = f"mappedFileSizeCommitLog={64 << 20}"
    assert f"`make run ARGS='--set {small}'` makes that 64 and 128 MiB" in guide
