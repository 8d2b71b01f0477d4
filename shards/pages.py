"""The supervisor's HTTP port: /metrics, /live and /ready of all shards, and /shards about them.

Each page asks the shards at their own ports, all at once. A shard that has not answered whole
within `ANSWER_S` counts as down: `aerobee_shard_up 0`, and its families are missing from this
scrape.

The page of metrics has each family once, and each sample the label `shard`. The text format wants
the samples of a family together, so the shards' pages are cut into families first; the scraper's
page is then made family by family.

/ready is 200 when all shards are ready and so is the name server. /live is 200 while each running
shard answers, and none says that its loop is stuck: a shard that has died is being started again,
and a restart of the whole for that would take the others down.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from aerobee.broker.monitoring.http import Request, Response, Route, json_response
from aerobee.broker.monitoring.metrics import Row
from aerobee.shards.child import Child, State
from aerobee.shards.supervisor import Supervisor

log = logging.getLogger("aerobee.shards")

#: A scrape may take ten seconds with Prometheus' own default.
ANSWER_S: Final = 5.0
# Several times the size that metrics.series_per_family allows a page by default.
_PAGE_BYTES_MAX: Final = 32 << 20
# The kernel takes connections for a loop that is stuck. It refuses or resets them for a process
# that has just ended, which the supervisor may notice a moment later.
_ENDED: Final = (0, b'"it has just ended, or its HTTP port is closed"')
_NOT_STUCK: Final = frozenset({200, _ENDED[0]})
# Status and body of a shard's page, None without an answer.
_Answer: TypeAlias = tuple[int, bytes] | None

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAMILY: Final = re.compile(rb"(?m)^(?=# HELP )")
_WITH_LABELS: Final = re.compile(rb"(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)\{")
_WITHOUT: Final = re.compile(rb"(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*) ")
_SAMPLES: Final = re.compile(rb"(?m)^(?!#)")


class ShardPlace(NamedTuple):
    """The place of a shard: its broker's name and address for clients, its HTTP port, and the
    context for that port if it takes only TLS."""

    name: str
    address: str
    http_host: str
    http_port: int
    tls: ssl.SSLContext | None = None


class Pages:
    """The routes of the port. Loop thread only."""

    def __init__(
        self, supervisor: Supervisor, places: Sequence[ShardPlace], answer_s: float = ANSWER_S
    ) -> None:
        self._supervisor = supervisor
        self._places = places
        self._answer_s = answer_s

    def routes(self) -> dict[str, Route]:
        return {
            "/metrics": self.metrics,
            **dict.fromkeys(("/live", "/livez"), self.live),
            **dict.fromkeys(("/ready", "/readyz"), self.ready),
            "/shards": self.shards,
        }

    async def metrics(self, _request: Request) -> Response:
        answers = await self._ask_all("/metrics")
        pages = {
            str(number): answer[1]
            for number, answer in enumerate(answers)
            if answer is not None and answer[0] == 200
        }
        pages_bytes = sum(map(len, pages.values()))
        own = own_families(self._supervisor, pages.keys())

        def parts() -> Iterator[bytes]:
            yield own
            yield from merged(pages)

        return Response(200, b"", _CONTENT_TYPE, parts=parts(), held_bytes=2 * pages_bytes)

    async def live(self, _request: Request) -> Response:
        shown, all_live = [], True
        for child, about, answer in await self._asked("/live"):
            turns = answer is not None and answer[0] in _NOT_STUCK
            stuck = child.state is State.READY and not turns
            all_live = all_live and not stuck
            shown.append({**about, "live": not stuck})
        return json_response(200 if all_live else 503, {"live": all_live, "shards": shown})

    async def ready(self, _request: Request) -> Response:
        shown, all_ready = [], True
        for child, about, answer in await self._asked("/ready"):
            is_ready = child.state is State.READY and answer is not None and answer[0] == 200
            all_ready = all_ready and is_ready
            about["ready"] = is_ready
            if not is_ready:
                about["reason"] = _reason(child, answer)
            elif answer is not None and (notes := _notes(answer[1])):
                about["notes"] = notes
            shown.append(about)
        body: dict[str, object] = {"shards": shown}
        name_server = self._supervisor.name_server
        if name_server is not None:
            up = name_server.state is State.READY
            all_ready = all_ready and up
            body["nameserver"] = {"ready": up, "state": name_server.state.value}
        return json_response(200 if all_ready else 503, {"ready": all_ready, **body})

    async def shards(self, _request: Request) -> Response:
        """Show the processes; a shard that should answer and does not is shown as stuck."""
        shown = []
        for child, about, answer in await self._asked("/live"):
            about |= {"failures": child.failures, "status": child.status}
            if child.state is State.READY and answer is None:
                about |= {"state": "stuck", "status": f"no answer in {self._answer_s:g} s"}
            shown.append(about)
        if (server := self._supervisor.name_server) is not None:
            about = {"shard": server.name, "state": server.state.value, "pid": server.pid or None}
            shown.append({**about, "failures": server.failures, "status": server.status})
        return json_response(200, {"shards": shown})

    async def _asked(self, path: str) -> list[tuple[Child, dict[str, object], _Answer]]:
        """Ask each shard; returns it with the facts that all pages show, and its answer."""
        answers = await self._ask_all(path)
        shards = zip(self._supervisor.shards, self._places, answers, strict=True)
        return [(child, _about(child, place), answer) for child, place, answer in shards]

    async def _ask_all(self, path: str) -> list[_Answer]:
        return await asyncio.gather(
            *(
                self._ask(child, place, path)
                for child, place in zip(self._supervisor.shards, self._places, strict=True)
            )
        )

    async def _ask(self, child: Child, place: ShardPlace, path: str) -> _Answer:
        """Status and body of a shard's page; None without an answer, `_ENDED` if nobody listens."""
        if child.state is not State.READY:
            return None
        try:
            async with asyncio.timeout(self._answer_s):
                return await fetch(place.http_host, place.http_port, path, place.tls)
        except (OSError, ValueError) as error:
            # A time-out is an OSError too.
            log.info("no answer name=%s path=%s error=%r", child.name, path, error)
            return _ENDED if isinstance(error, ConnectionError) else None


async def fetch(
    host: str, port: int, path: str, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and whole body of a page of a shard's HTTP port. Raises OSError, and ValueError when
    the answer is not whole."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next(line for line in lines if line.startswith("content-length:"))
            size = int(length.partition(":")[2])
            if size > _PAGE_BYTES_MAX:
                raise ValueError(f"a page of {size} bytes")
            return int(lines[0].split()[1]), await reader.readexactly(size)
        except (asyncio.IncompleteReadError, StopIteration, IndexError) as error:
            raise ValueError("not a whole answer") from error
    finally:
        writer.close()


def own_families(supervisor: Supervisor, answered: Collection[str]) -> bytes:
    """The supervisor's own counts, as text of the metrics page."""
    shards = {str(number): child for number, child in enumerate(supervisor.shards)}
    up = {shard: int(shard in answered) for shard in shards}
    failures = {shard: child.failures for shard, child in shards.items()}
    rows = [
        Row("aerobee_shard_up", up, "1 when the shard has answered this scrape", "shard"),
        Row("aerobee_shard_failures_total", failures,
            "Times the shard has ended by itself and was started again", "shard"),
    ]  # fmt: skip
    if (name_server := supervisor.name_server) is not None:
        rows += [
            Row("aerobee_shards_nameserver_up", int(name_server.state is State.READY),
                "1 while the name server of the shards runs and is ready"),
            Row("aerobee_shards_nameserver_failures_total", name_server.failures,
                "Times the name server of the shards has ended by itself and was started again"),
        ]  # fmt: skip
    return "".join(map(_text, rows)).encode()


def _text(row: Row) -> str:
    """A row as a family of the page. It does without prometheus-client, which takes 5 MB."""
    kind = "counter" if row.name.endswith("_total") else "gauge"
    lines = [f"# HELP {row.name} {row.help_text}", f"# TYPE {row.name} {kind}"]
    if isinstance(row.value, Mapping):
        lines += [f'{row.name}{{{row.label}="{key}"}} {n}' for key, n in row.value.items()]
    else:
        lines.append(f"{row.name} {row.value}")
    return "\n".join(lines) + "\n"


def merged(pages: Mapping[str, bytes]) -> Iterator[bytes]:
    """The families of all pages, labelled with shard names, in the order of the first page that has
    them."""
    families: dict[bytes, dict[str, bytes]] = {}
    for shard, page in pages.items():
        for block in _FAMILY.split(page):
            if block.startswith(b"# HELP "):
                families.setdefault(block.split(b" ", 3)[2], {})[shard] = block
    for blocks in families.values():
        yield _family(blocks)


def _family(blocks: Mapping[str, bytes]) -> bytes:
    parts: list[bytes] = []
    for shard, block in blocks.items():
        match = _SAMPLES.search(block)
        begin = match.start() if match else len(block)
        if not parts:
            parts.append(block[:begin])
        parts.append(_labelled(block[begin:], shard.encode()))
    return b"".join(parts)


def _labelled(samples: bytes, shard: bytes) -> bytes:
    samples = _WITH_LABELS.sub(rb'\g<1>{shard="' + shard + rb'",', samples)
    return _WITHOUT.sub(rb'\g<1>{shard="' + shard + rb'"} ', samples)


def _about(child: Child, place: ShardPlace) -> dict[str, object]:
    return {
        "shard": child.name,
        "broker": place.name,
        "address": place.address,
        "state": child.state.value,
        "pid": child.pid or None,
    }


def _reason(child: Child, answer: _Answer) -> object:
    """The reason why a shard is not ready: its own checks if it has answered, else its status."""
    if answer is None:
        if child.state is State.READY:
            return "no answer in time"
        # A process that has just begun has said nothing yet.
        return child.status or f"it is {child.state.value}"
    try:
        return msgspec.json.decode(answer[1])
    except msgspec.DecodeError:
        return answer[1].decode(errors="replace")


def _notes(body: bytes) -> list[object]:
    """The notes of a shard that is ready: accounts that cannot be taken, and the like."""
    try:
        checks = msgspec.json.decode(body)["checks"]
        return [check for check in checks if check.get("note") and not check["ok"]]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return []  # not a broker's page; `reason` says more about it
