"""A crowd that shakes hands as nobody should, at a broker that asks for TLS, certificates and
accounts, and a client that has them all and goes on sending.

Each of the crowd is refused for its own reason, counted, and logged once a minute with one peer of
its kind; the client's messages are all acknowledged meanwhile, and the broker gives back the memory
when the crowd has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import re
import ssl
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.errors import ClientError
from aerobee.client.message import Message
from aerobee.client.options import ClientOptions, ProducerOptions
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from tests import campaign
from tests.service.kit import WAIT_S, Served, wait_until
from tests.tls.authority import Authority, client, hello, old_client

SUITE = "hostile handshakes"
#: The size of a wave: costs that come only with the first are no growth with the second.
WAVE = 1_000
#: The clients of a wave at the same time, but for those that wait until the broker closes them.
AT_ONCE = 60
#: docs/security.md, "Encryption": in all, and what one wave more may add.
GIVEN_BACK_BYTES, GROWTH_BYTES = 8 << 20, 2 << 20
#: Sends of the honest client before the crowd comes, and between its waves.
CALM = 100
#: How much longer its middle one takes beside the crowd. Less than twice on a machine that does
#: nothing else; the crowd runs in the client's own process.
SLOWER = 20
ADMIN, USER, SECRET = "administrator", "shop-client", "hidden-in-a-file"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - readers=SUB
"""


@dataclass(slots=True)
class Attack:
    """The means of the crowd; `port` is the broker's."""

    port: int
    trusted: ssl.SSLContext
    strangers: tuple[ssl.SSLContext, ...]
    wary: ssl.SSLContext
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)

    # --- one of each kind: returns when the broker has closed it

    async def rubbish(self) -> None:
        size = self.rng.choice((8, 60, 3_000))
        await self._said(b"\x16" + self.rng.choice((b"\x03\x01\x00", b"")) + b"\x07" * size)

    async def old_version(self) -> None:
        await self._said(_OLD)

    async def no_common_cipher(self) -> None:
        await self._said(_WEAK)

    async def plain_on_enforcing(self) -> None:
        await self._said(make_request(10).encode())

    async def timeout(self) -> None:
        """It stops halfway: in its hello, or behind it."""
        await self._said(_HELLO[: self.rng.choice((1, 4, 5, 200, len(_HELLO)))])

    async def silent(self) -> None:
        await self._said(b"")

    async def gone(self) -> None:
        """It leaves when the broker has begun with it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_HELLO)
        await reader.read(1)
        writer.transport.abort()

    async def certificate(self) -> None:
        """Without one, or with one of another authority."""
        await self._shaken(self.rng.choice(self.strangers))

    async def refused_by_client(self) -> None:
        await self._shaken(self.wary)

    async def unsigned(self) -> int:
        """With a certificate, and without an account: the code of its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusted)
        writer.write(make_request(28).encode())
        decoder = FrameDecoder()
        while not (answers := decoder.feed(await reader.read(65536))):
            assert not reader.at_eof()
        writer.close()
        return answers[0].code

    async def _said(self, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()

    async def _shaken(self, context: ssl.SSLContext) -> None:
        """Shake hands as far as it goes, by hand: asyncio leaves without telling the other side
        why."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        from_peer, to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(from_peer, to_peer)
        with contextlib.suppress(ConnectionError):
            while True:
                # With TLS 1.3 a client hears of it after its own part.
                with contextlib.suppress(ssl.SSLError):
                    side.do_handshake()
                writer.write(to_peer.read())
                if not (data := await reader.read(65536)):
                    break
                from_peer.write(data)
        writer.close()


_HELLO = hello()
_OLD = hello(old_client(ssl.TLSVersion.TLSv1_1))


def _weak() -> bytes:
    """The hello of a client whose ciphers want another kind of key than the broker's."""
    context = client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA")
    return hello(context)


_WEAK = _weak()
#: The reason that is counted is the kind's name; that of `unsigned` is one of access.
QUICK = (
    "rubbish", "old_version", "no_common_cipher", "plain_on_enforcing", "gone", "certificate",
    "refused_by_client", "unsigned",
)  # fmt: skip
LASTING = ("timeout", "silent")


class Honest:
    """A client with a certificate and an account, which sends one message after another."""

    def __init__(self, address: str, access: dict[str, Any]) -> None:
        self.acknowledged = 0
        self.spent_s: list[float] = []
        self.failed: list[Exception] = []
        self._stop = threading.Event()
        self._options = ProducerOptions(**access, retries=0)
        self._address = address
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with Producer(self._address, options=self._options) as producer:
                while not self._stop.is_set():
                    began = time.monotonic()
                    producer.send(Message("orders", b"honest %d" % self.acknowledged))
                    self.spent_s.append(time.monotonic() - began)
                    self.acknowledged += 1
        except ClientError as error:
            self.failed.append(error)

    @contextlib.contextmanager
    def sending(self) -> Iterator[Honest]:
        self._thread.start()
        try:
            self.wait_more(CALM)
            yield self
            self.wait_more(CALM)
        finally:
            self._stop.set()
            self._thread.join()
        assert self.failed == []

    def wait_more(self, count: int) -> None:
        """Wait until `count` more are acknowledged."""
        goal = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= goal or self.failed, f"{count} more are sent")
        assert self.failed == []


async def wave(attack: Attack, count: int, seen: Callable[[], None]) -> Counter[str]:
    """Send a crowd of `count`, in equal parts of each kind. It calls `seen` ten times meanwhile,
    with each tenth of those who do not last. Returns the number of each kind."""
    each = count // len(QUICK + LASTING)
    names = attack.rng.sample((QUICK + LASTING) * each, each * len(QUICK + LASTING))
    tenth = each * len(QUICK) // 10
    places = asyncio.Semaphore(AT_ONCE)
    ended = 0

    async def one(name: str) -> None:
        nonlocal ended
        place = places if name in QUICK else contextlib.nullcontext()
        async with place, asyncio.timeout(WAIT_S):
            code = await getattr(attack, name)()
        assert name != "unsigned" or code == 1
        ended += name in QUICK
        if name in QUICK and ended % tenth == 0:
            seen()

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    return Counter(names)


def failures(page: str, family: str) -> Counter[str]:
    """The counts by reason, at the broker's port."""
    found = re.findall(rf"^{family}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    return Counter(
        {
            re.findall(r'reason="(\w+)"', labels)[0]: int(float(count))
            for labels, count in found
            if 'server="broker"' in labels and float(count)
        }
    )


def page(daemon: Served, authority: Authority) -> str:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", daemon.http_port, timeout=WAIT_S, context=client(authority)
    )
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def resident_bytes(daemon: Served) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def sealed(serve: Callable[..., Served], authority: Authority, tmp_path: Path) -> Served:
    """A broker that asks for everything."""
    pair = authority.pair("broker")
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    settings = (
        "tls.server.mode=enforcing",
        f"tls.server.certPath={pair.certificate}",
        f"tls.server.keyPath={pair.key}",
        "tls.server.need.client.auth=require",
        f"tls.server.trustCertPath={authority.certificate}",
        f"tls.client.certPath={pair.certificate}",
        f"tls.client.keyPath={pair.key}",
        "tls.handshake_seconds=2",
        "aclEnable=true",
        f"aclFile={accounts}",
    )
    return serve(*(word for setting in settings for word in ("--set", setting))).ready()


def attack_on(daemon: Served, authority: Authority, folder: Path, seed: int) -> Attack:
    others = Authority(folder / "others", "others")
    strangers = (others.pair("stranger"), authority.pair("late", days=-1), None)
    return Attack(
        daemon.port,
        client(authority, authority.pair("unsigned")),
        tuple(client(pair=pair) for pair in strangers),
        client(others),
        random.Random(f"crowd {seed}"),
    )


def access_of(authority: Authority) -> dict[str, Any]:
    """The credentials of a client that is served."""
    pair = authority.pair("user")
    return {
        "access_key": USER, "secret_key": SECRET, "use_tls": True,
        "trust_store": str(authority.certificate),
        "certificate": str(pair.certificate), "certificate_key": str(pair.key),
    }  # fmt: skip


def test_a_crowd_of_hostile_handshakes_costs_an_honest_client_nothing(
    serve: Callable[..., Served], authority: Authority, tmp_path: Path, seed: int
) -> None:
    daemon = sealed(serve, authority, tmp_path)
    attack = attack_on(daemon, authority, tmp_path, seed)
    access = access_of(authority)
    address = f"127.0.0.1:{daemon.name_server_port}"
    honest = Honest(address, access)
    came: Counter[str] = Counter()
    resident, progress = [], []
    print(f"seed {seed}")
    began = time.monotonic()
    with honest.sending():
        resident.append(resident_bytes(daemon))
        for _ in range(campaign.size(SUITE) // WAVE):
            came += asyncio.run(wave(attack, WAVE, lambda: progress.append(honest.acknowledged)))
            honest.wait_more(CALM)
            resident.append(resident_bytes(daemon))
    minutes = 1 + int((time.monotonic() - began) / 60)
    campaign.note(SUITE, sum(came.values()), honest_sends=honest.acknowledged)
    check_counted(page(daemon, authority), came)
    check_logged(daemon.log, set(came), minutes)
    check_served(honest, progress)
    assert stored(address, access) == honest.acknowledged
    check_given_back(resident)
    daemon.terminate()
    assert daemon.wait() == 0


def check_counted(metrics: str, came: Counter[str]) -> None:
    """Each was refused for what it did."""
    handshakes = {kind: count for kind, count in came.items() if kind != "unsigned"}
    assert failures(metrics, "aerobee_tls_failures_total") == handshakes
    refused = failures(metrics, "aerobee_access_refused_total")
    assert refused == {"no_access_key": came["unsigned"]}
    assert '\naerobee_connections_arriving{server="broker"} 0.0\n' in metrics


def check_logged(log: str, kinds: set[str], minutes: int) -> None:
    """A line a minute for each reason, with a peer."""
    lines = [json.loads(line) for line in log.splitlines() if "connection not taken" in line]
    reasons = Counter(line["reason"].replace(" ", "_") for line in lines)
    assert set(reasons) == kinds - {"unsigned"}
    assert max(reasons.values()) <= minutes
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", line["peer"]) for line in lines)
    refused = [line for line in log.splitlines() if "request refused" in line]
    assert 1 <= len(refused) <= minutes
    assert SECRET not in log


def check_served(honest: Honest, progress: list[int]) -> None:
    """The honest client went on all the while, and was not much slower. In two tenths of a wave it
    may have waited for the crowd to let go of this process."""
    assert len(set(progress)) >= 0.8 * len(progress), progress
    calm, beside = (
        statistics.median(part) for part in (honest.spent_s[:CALM], honest.spent_s[CALM:])
    )
    print(f"{honest.acknowledged} sends; {calm * 1e3:.2f} ms, beside the crowd {beside * 1e3:.2f}")
    assert beside <= SLOWER * calm


def check_given_back(resident: list[int]) -> None:
    """Check the memory that the crowd has cost; the first figure is from before."""
    growth = [later - resident[0] for later in resident[1:]]
    print(f"memory {[round(one / 2**20, 1) for one in growth]} MiB")
    assert max(growth) <= GIVEN_BACK_BYTES
    assert growth[-1] - growth[0] <= GROWTH_BYTES * (len(growth) - 1)


def stored(address: str, access: dict[str, Any]) -> int:
    """How many messages the topic has."""
    with PullConsumer(address, "readers", options=ClientOptions(**access)) as consumer:
        queues = consumer.queues("orders")
        return sum(consumer.max_offset(queue) for queue in queues)
