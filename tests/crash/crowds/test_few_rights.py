"""A peer with no right and one with the least right, at the limits of each code, in 512 MB.

The daemon has accounts and runs in a memory cgroup. The attacker (`few_rights.py`) has an account
without any right, or SUB on one group; it sends each request code of both ports at its limits, code
by code and then all together, while an administrator's client sends a hundred messages a second.
Then the daemon is stopped, started again on the same store, and has what was acknowledged.

In each run the daemon stays up, nothing is killed by the limit, and the client goes on. How long
the client's worst send took is shown, and in a campaign held under 100 ms (the best of three tries:
the machine's scheduler is not the broker's).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aerobee.protocol.frames.signature import signed
from tests import campaign
from tests.crash.crowds.few_rights import LEAST, NO_RIGHT, PORTS, SECRET
from tests.crash.crowds.memory_group import MemoryGroup
from tests.crash.running.aside import Aside
from tests.crash.running.link import MAX_OFFSET, SEND, SUCCESS, SYSTEM_BUSY, Link, send_fields
from tests.service.kit import Served
from tests.tools import need

_SUITE = "few rights"
_LIMIT_BYTES = 512 << 20
_GOAL_MS = 100
_RATE = 100
_TRIES = 3
_PROGRAM = Path(__file__).with_name("few_rights.py")
_ADMIN, _TOPIC = "administrator", "Good"
_ACCOUNTS = f"""\
accounts:
- accessKey: {_ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {NO_RIGHT}
  secretKey: {SECRET}
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
- accessKey: {LEAST}
  secretKey: {SECRET}
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  groupPerms:
  - CG=SUB
"""
_FORMS = ("required", "off")


class AdminLink(Link):
    """Signs what it asks as the administrator."""

    def ask(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> int:
        fields = {name: str(value) for name, value in ext.items()}
        return super().ask(code, signed(fields, body, _ADMIN, SECRET), body)


class Sender(Aside):
    """Sends a hundred messages a second, and knows what each took."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.acknowledged = self.busy = 0
        self._took_ms: list[float] = []
        self._port = port

    def work(self) -> None:
        with AdminLink(self._port) as link:
            following = time.monotonic()
            while not self._done.wait(max(0.0, following - time.monotonic())):
                began = time.monotonic()
                answer = link.call(SEND, send_fields(_TOPIC, 0, {"KEYS": "k"}), b"good")
                self._took_ms.append((time.monotonic() - began) * 1_000)
                if answer.code == SYSTEM_BUSY:
                    self.busy += 1
                else:
                    assert answer.code == SUCCESS, answer.remark
                    self.acknowledged += 1
                # Missed sends are not made up for: that would hide that somebody stood still.
                following = max(following + 1 / _RATE, time.monotonic())

    def in_window(self, seconds: float) -> list[float]:
        """Milliseconds of each send that ended within `seconds`; and of one more, for as long as it
        takes: the longest of all may just be under way."""
        before = len(self._took_ms)
        self._done.wait(seconds)
        while len(self._took_ms) == before and self._thread.is_alive():
            self._done.wait(0.01)
        return self._took_ms[before:]


@dataclass
class Outcome:
    """The result of one life of the daemon."""

    kills: int = 0
    exit_code: int | None = None
    restarted: bool = False
    kept: int = 0
    acknowledged: int = 0
    failure: BaseException | None = None
    #: The output of the start that failed.
    why_not: str = ""
    peak_bytes: int = 0
    #: Worst send by code.
    worst_ms: dict[str, float] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """The faults that may not be, under any load of the machine."""
        found = [f"{self.kills} were killed by the limit"] if self.kills else []
        if self.failure is not None:
            found.append(f"the good client failed: {self.failure!r}")
        if self.exit_code != 0:
            found.append(f"the stop ended with {self.exit_code}")
        if not self.restarted:
            found.append(f"it did not start again: {self.why_not}")
        if self.kept < self.acknowledged:
            found.append(f"{self.acknowledged} were acknowledged, {self.kept} are there")
        return found

    def late(self) -> dict[str, float]:
        """The codes beside which a send took too long."""
        return {name: worst for name, worst in self.worst_ms.items() if worst > _GOAL_MS}


class Attacker:
    """The process that attacks; a context manager."""

    def __init__(self, daemon: Served, share: float) -> None:
        ports = (str(daemon.port), str(daemon.name_server_port))
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *ports, str(share)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @contextmanager
    def attack(self, peer: str, port: str, code: str) -> Iterator[dict[str, int]]:
        """Attacks within the block; the counts are in the value after it."""
        done: dict[str, int] = {}
        assert self._said(f"attack {peer} {port} {code}") == "ready"
        yield done
        done.update(json.loads(self._said("rest")))

    def _said(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@dataclass(frozen=True)
class Extent:
    """How much of everything: `codes` are of a port, and for how many seconds each."""

    codes: list[tuple[str, str]]
    window_s: float
    all_s: float
    share: float


def _start(folder: Path, group: MemoryGroup, form: str) -> Served:
    accounts = folder / "plain_acl.yml"
    accounts.parent.mkdir(parents=True, exist_ok=True)
    accounts.write_text(_ACCOUNTS)
    accounts.chmod(0o600)
    settings = (
        "aclEnable=true",
        "namesrvAclEnable=true",
        f"aclFile={accounts}",
        "store.commit_log_segment_bytes=67108864",
    )
    files = ("sh", "-c", 'ulimit -n "$(ulimit -H -n)"; exec "$0" "$@"')
    daemon = Served(
        folder, *(word for one in settings for word in ("--set", one)),
        environ={"AEROBEE_NATIVE": form}, prefix=(*group.prefix, *files),
    )  # fmt: skip
    try:
        return daemon.ready()
    except BaseException:
        daemon.close()
        raise


def attacked(
    folder: Path, peer: str, form: str, extent: Extent, say: Callable[[str], None]
) -> Outcome:
    """One life of a daemon with that peer, and the beginning of the next."""
    outcome = Outcome()
    with MemoryGroup(_LIMIT_BYTES) as group:
        daemon = _start(folder, group, form)
        try:
            with AdminLink(daemon.port) as link:
                link.create_topic(_TOPIC, 1)
            with Sender(daemon.port) as client, Attacker(daemon, extent.share) as attacker:
                alone = max(client.in_window(extent.window_s), default=0.0)
                say(f"{peer}, form {form}, alone: worst send {alone:.0f} ms")
                for port, code in extent.codes:
                    _attack(outcome, client, daemon, attacker, (peer, port, code), extent, say)
                    if client.failure is not None or group.kills():
                        break
            outcome.failure, outcome.acknowledged = client.failure, client.acknowledged
            outcome.peak_bytes = group.peak_bytes()
            daemon.terminate()
            outcome.exit_code = daemon.wait(90)
        finally:
            daemon.close()
        # After any end, a kill too, the daemon has to start again, in the same memory.
        _start_again(outcome, folder, group, form)
        outcome.kills = group.kills()
    return outcome


def _start_again(outcome: Outcome, folder: Path, group: MemoryGroup, form: str) -> None:
    try:
        daemon = _start(folder, group, form)
    except (AssertionError, pytest.fail.Exception) as error:
        outcome.why_not = str(error)[-2_000:]
        return
    try:
        outcome.restarted = True
        with AdminLink(daemon.port) as link:
            answer = link.call(MAX_OFFSET, {"topic": _TOPIC, "queueId": 0})
            outcome.kept = int(answer.ext["offset"])
    finally:
        daemon.close()


def _attack(
    outcome: Outcome,
    client: Sender,
    daemon: Served,
    attacker: Attacker,
    what: tuple[str, str, str],
    extent: Extent,
    say: Callable[[str], None],
) -> None:
    """One code, again while a send took too long and there are tries left; the best try counts."""
    peer, port, code = what
    name = f"{peer}, {port} code {code}"
    seconds = extent.all_s if code == "all" else extent.window_s
    worst = float("inf")
    for _ in range(_TRIES):
        before = client.busy
        with attacker.attack(peer, port, code) as done:
            took = client.in_window(seconds)
        worst = min(worst, max(took, default=0.0))
        say(
            f"{name}: {len(took)} sends, worst {max(took, default=0.0):.0f} ms, "
            f"{client.busy - before} refused, held {_held_bytes(daemon) / 2**20:.0f} MiB, {done}"
        )
        if worst <= _GOAL_MS or not campaign.is_full() or client.failure is not None:
            break
    outcome.worst_ms[name] = worst


def _held_bytes(daemon: Served) -> int:
    """Resident memory without the pages of files; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _extent() -> Extent:
    every = [(port, str(int(code))) for port, table in PORTS.items() for code in table]
    if campaign.is_full():
        return Extent([*every, ("both", "all")], 2.0, 60.0, 1.0)
    return Extent(campaign.draw(_SUITE, every), 0.5, 0.5, 0.25)


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk: files in memory are counted as the daemon's own by its control group."""
    with tempfile.TemporaryDirectory(prefix="aerobee-") as made:
        yield Path(made)


@pytest.mark.drawn(_SUITE)
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("peer", [NO_RIGHT, LEAST])
def test_a_peer_with_few_rights_takes_nothing_from_others(
    folder: Path, peer: str, form: str, record_property: Callable[[str, object], None]
) -> None:
    need("memory cgroup")
    extent = _extent()

    def say(line: str) -> None:
        print(line)
        record_property("measured", line)

    outcome = attacked(folder, peer, form, extent, say)
    late = outcome.late()
    campaign.note(_SUITE, len(outcome.worst_ms), wrong=len(outcome.wrong()), late_sends=len(late))
    assert outcome.wrong() == [], outcome
    assert len(outcome.worst_ms) == len(extent.codes)
    if campaign.is_full():
        assert not late


# --- controls -------------------------------------------------------------------------------------


def test_an_outcome_that_is_wrong_is_seen() -> None:
    good = Outcome(exit_code=0, restarted=True, kept=2, acknowledged=2)
    assert good.wrong() == []
    wrongs = (
        {"kills": 1}, {"exit_code": -9}, {"restarted": False}, {"kept": 1},
        {"failure": ConnectionError()},
    )  # fmt: skip
    caught = sum(bool(Outcome(**{**vars(good), **one}).wrong()) for one in wrongs)
    campaign.note_control(_SUITE, "what may not be", caught, len(wrongs))
    assert caught == len(wrongs)
    assert Outcome(worst_ms={"a": 99.0, "b": 101.0}).late() == {"b": 101.0}
