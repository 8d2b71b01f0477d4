"""A whole daemon and a name server in this loop, spoken to over connections without sockets.

An input meets the product's code from a socket's read on: the compiled form's requests, frames,
router, handlers, tables, store. Only the transport is the tests', so that a hundred thousand inputs
need no sockets and each can be cut into pieces at will.

`Judge` is the oracle. It knows nothing of what a request means; it holds what must be true of any:
- the bytes mean the same however they are cut into pieces, and the decoder raises nothing;
- a connection is closed if and only if its bytes are no frames, and never for a fault of ours;
- each request that wants an answer gets exactly one, with its number; nobody else gets any;
- no handler raises, nothing is logged as an error, nothing reaches the loop's handler;
- a remark shows no path of the store and no stack;
- what was refused has changed no byte of the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.broker.messages.compiled_requests import CompiledRequests
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.reload import Reload
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers.transactions import UNKNOWN, EndTransactionHeader
from aerobee.remoting.connection_stats import CloseReason
from aerobee.remoting.connections.connection import Connection, Handler
from aerobee.remoting.listening.server import RemotingServer
from aerobee.store.message_store import MessageStore
from aerobee.testing import SMALL
from tests.native.replayed import ByHand

#: Low, because each topic and group costs a save of its table.
LIMITS: dict[str, Any] = {
    "max_topics": 40,
    "max_groups": 40,
    "held_pulls": 1_000,
    "max_message_bytes": 65_536,
    "max_inflated_bytes": 1 << 20,
    "commit_log_segment_bytes": 1 << 22,
    # Requests of slaves are served where their port opens.
    "ha_enabled": True,
}
PIECE = 65_536
#: A reply to a client that asked is stored, whether or not the client takes it.
_REPLIES = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
#: The answer may come when a worker, or a batch of another's, is done, or when a client that was
#: asked has had its time.
_LATE = {
    RequestCode.STAGE_INTENT,
    RequestCode.STAGE_STATUS,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    *_REPLIES,
}
_REPETITIONS = 4
#: A code that nobody handles, refused at once.
_STORES_NOTHING = Command(code=32_000, opaque=1).encode()
_SETTLE_S = 10.0
#: Within this number of turns of the loop every request that waits only for its turn is served.
_ASIDE_TURNS = 100
#: Messages that requests put into the log beside their own: an event of an offset that was moved, a
#: message that a job has staged, or a message whose time has come.
_MOVED, _OTHERS = 21, ("OFFSET_MOVED",)


class NoSocket(asyncio.Transport):
    """Takes what is written, and does what a connection asks of a transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port), "sockname": ("127.0.0.1", 10_911)})
        self._loop = loop
        self.protocol: Connection
        self.written = bytearray()
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is never full."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close


class Errors(logging.Handler):
    """Every record of ERROR and above, and every record with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(self.format(record))


@dataclass(slots=True)
class Heard:
    """One input, and what came of it."""

    data: bytes
    connection: Connection
    transport: NoSocket
    wanted: Counter[int] = field(default_factory=Counter)
    late: set[int] = field(default_factory=set)
    broken: bool = False
    wrong: list[str] = field(default_factory=list)
    answers: list[Command] = field(default_factory=list)

    def take(self) -> None:
        """Decode what was written since the last time."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        self.answers += FrameDecoder(1 << 27, 1 << 27).feed(data)

    def missing(self) -> Counter[int]:
        """Numbers of requests that are not answered yet."""
        return self.wanted - Counter(one.opaque for one in self.answers if one.is_response)


def load_changes(file: Path, settings: Settings, changes: Mapping[str, str]) -> Loaded:
    """These settings, which are in no file, with the changes of requests; the file permits changes,
    and names the store."""
    loaded = load_settings(file, environ={}, remote=changes)
    changed = {
        name: getattr(loaded.settings, name)
        for name, origin in loaded.origins.items()
        if origin.source == "remote"
    }
    return loaded._replace(settings=settings.with_changes(**changed))


class Target:
    """`async with Target(folder) as target`: a daemon whose `deliver` takes inputs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        chosen = {**SMALL, **LIMITS, **settings, "store_path": str(folder / "store")}
        chosen_settings = Settings.for_tests(**chosen)
        reload = None
        if chosen_settings.remote_config:
            file = folder / "aerobee.toml"
            file.write_text(
                f'[admin]\nremote_config = true\n[store]\npath = "{chosen["store_path"]}"\n'
            )
            reload = Reload(chosen_settings, partial(load_changes, file, chosen_settings))
        self._daemon = Daemon(chosen_settings, reload=reload)
        self._name_server = self._made_name_server(chosen_settings)
        self._ports: dict[str, tuple[RemotingServer, Handler]] = {}
        self.errors = Errors()
        #: Reads of which the compiled form has served something.
        self.short_cuts = 0
        self._peers = 0
        self.to_loop: list[str] = []
        # How long answers are waited for; a control that gets none need not wait so long.
        self.settle_s = _SETTLE_S

    def _made_name_server(self, _settings: Settings) -> NameServer:
        return NameServer("127.0.0.1", 0, self.folder / "kv.json")

    async def __aenter__(self) -> Target:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _loop, why: self.to_loop.append(str(why)))
        logging.getLogger("aerobee").addHandler(self.errors)
        await self._daemon.start()
        await self._name_server.start()
        core = self._daemon.core
        self._ports = {
            "broker": (self._daemon.main_server, core.main_router),
            "vip": (self._daemon.vip_server, core.vip_router),
            "name server": (self._name_server._server, self._name_server),
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        logging.getLogger("aerobee").removeHandler(self.errors)
        await self._name_server.close()
        await self._daemon.stop()

    @property
    def port(self) -> int:
        """The broker's real port."""
        return self._daemon.main_server.port

    @property
    def store(self) -> MessageStore:
        """The broker's."""
        return self._daemon.store

    @property
    def written(self) -> int:
        """The end of the log."""
        return self.store.written

    @property
    def codes(self) -> dict[str, set[int]]:
        """The codes that are handled, by port."""
        return {
            "broker": set(self._daemon.core.main_router._handlers),
            "name server": set(self._name_server._requests._handlers),
        }

    def break_router(self, code: int, handler: Callable[[Connection, Command], Any]) -> None:
        """For a negative control: `handler` in the place of the product's."""
        assert code in self._daemon.core.main_router._handlers
        self._daemon.core.main_router._handlers[code] = handler

    def connect(self, port: str, data: bytes) -> Heard:
        """A connection on which `data` will come."""
        server, handler = self._ports[port]
        self._peers = self._peers % 60_000 + 1
        transport = NoSocket(self.loop, self._peers)
        peer = ("127.0.0.1", self._peers)
        compiled = compiled_of(server)
        if compiled is None:
            connection = Connection(server.connections, handler, peer)
        else:
            connection = ByHand(server.connections, handler, compiled, self._take_note, peer)
        transport.protocol = connection
        connection.connection_made(transport)
        return Heard(data, connection, transport)

    def _take_note(self, taken: int) -> None:
        self.short_cuts += taken > 0

    async def feed(self, heard: Heard, sizes: Sequence[int]) -> None:
        """Hand the input over in pieces of these sizes, the last one again and again."""
        data, position, turn = heard.data, 0, 0
        while position < len(data) and not heard.connection.closed:
            if not heard.transport.reading:
                await asyncio.sleep(0)
                turn += 1
                assert turn < 100_000, "a connection is not read any more"
                continue
            size = min(sizes[0] if len(sizes) == 1 else sizes[turn % len(sizes)], PIECE)
            piece = data[position : position + size]
            turn += 1
            buffer = heard.connection.get_buffer(len(piece))
            buffer[: len(piece)] = piece
            heard.connection.buffer_updated(len(piece))
            position += len(piece)
        # On a busy machine a turn of the loop may be over before this peer was served.
        for _ in range(_ASIDE_TURNS):
            if not heard.connection.waiting_commands:
                return
            await asyncio.sleep(0)

    async def settle(self, batch: Sequence[Heard]) -> None:
        """Wait until all are answered; pulls that would wait for messages are let go."""
        deadline = self.loop.time() + self.settle_s
        turns = 0
        while True:
            self._daemon.core.held.release_all()
            await asyncio.sleep(0 if turns < 20 else 0.002)
            turns += 1
            waiting = False
            for heard in batch:
                heard.take()
                waiting |= bool(not heard.transport.closing and set(heard.missing()) - heard.late)
                # Bytes that break a connection are read after the requests before them, and those
                # may wait for a save.
                waiting |= heard.broken and not heard.connection.closed
            if turns > 2 and (not waiting or self.loop.time() > deadline):
                return

    def hang_up(self, batch: Sequence[Heard]) -> None:
        """End the connections."""
        for heard in batch:
            heard.transport.close()


def compiled_of(server: RemotingServer) -> CompiledRequests | None:
    """The compiled server of plain requests on the server's sockets; None without the compiled
    form."""
    made = server._make_sockets
    return None if made is None else getattr(made, "__self__")  # noqa: B009 - of a bound method


class Judge:
    """Says what is wrong with what came of inputs. `decoder`: whose reading of the bytes counts."""

    def __init__(self, target: Target, decoder: Callable[[], FrameDecoder] = FrameDecoder) -> None:
        self._target = target
        self._decoder = decoder
        self._errors = 0

    async def batch(self, port: str, inputs: Sequence[bytes], rng: random.Random) -> list[Heard]:
        """Deliver the inputs, each on a connection of its own, and judge them."""
        target = self._target
        heard: list[Heard] = []
        grown: list[Heard] = []
        for data in inputs:
            one = target.connect(port, data)
            heard.append(one)
            self._read_twice(one)
            before = target.written
            await target.feed(one, self._pieces(port, data, rng))
            one.take()
            if target.written > before:
                grown.append(one)
            self._errors_of(one)
        await target.settle(heard)
        for one in grown:
            if one.answers and not one.missing() and self._refused_all(one):
                await self._repeat(port, one)
        for one in heard:
            self._judge(one)
        target.hang_up(heard)
        await asyncio.sleep(0)
        self._errors_of(heard[-1], "of this batch")
        return heard

    def _pieces(self, _port: str, data: bytes, rng: random.Random) -> Sequence[int]:
        """The sizes in which an input comes."""
        roll = rng.random()
        if roll < 0.05 and len(data) < 3_000:
            return (1,)
        if roll < 0.5:
            return [rng.choice((1, 3, 4, 7, 8, 20, 100, 1_000)) for _ in range(6)] + [PIECE]
        return (PIECE,)

    async def _repeat(self, port: str, heard: Heard) -> None:
        """The log has grown while this input was refused. Does it each time?

        Earlier requests of others go on in steps; delayed or prepared messages are written at their
        own time, on a slow machine (the sanitizers) often while an input is repeated: then it grows
        under a request that never stores as well.
        """
        for _ in range(_REPETITIONS):
            if not await self._grows(port, heard.data, heard):
                return
            if await self._grows(port, _STORES_NOTHING, heard):
                return
        heard.wrong.append("the log has grown, though all was refused")

    async def _grows(self, port: str, data: bytes, heard: Heard) -> bool:
        target = self._target
        again = target.connect(port, data)
        self._read_twice(again)
        before = target.written
        await target.feed(again, (PIECE,))
        await target.settle([again])
        heard.wrong += again.wrong
        target.hang_up([again])
        return target.written > before and not again.missing() and self._refused_all(again)

    def _read_twice(self, heard: Heard) -> None:
        """At once and byte by byte: the same commands, the same end."""
        whole, single = self._decoder(), FrameDecoder()
        try:
            commands = whole.feed(heard.data)
            others: list[Command] = []
            if len(heard.data) < 4_000:
                for place in range(len(heard.data)):
                    others += single.feed(heard.data[place : place + 1])
            else:
                for place in range(0, len(heard.data), PIECE):
                    others += single.feed(heard.data[place : place + PIECE])
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            heard.wrong.append(f"the decoder raised {type(error).__name__}: {error}")
            return
        # Compared as text: a NaN in a field is no number, and not equal to itself.
        if repr(commands) != repr(others) or (whole.failed is None) != (single.failed is None):
            heard.wrong.append("the bytes mean something else in pieces")
        if whole.failed is None and whole.buffered > len(heard.data):
            heard.wrong.append("the decoder holds more than it was given")
        heard.broken = whole.failed is not None
        for one in commands:
            if not one.flag & 3 and not self._is_unanswered(heard, one):
                heard.wanted[one.opaque] += 1
                if one.code in _LATE:
                    heard.late.add(one.opaque)

    def _is_unanswered(self, _heard: Heard, command: Command) -> bool:
        """Whether it says that a decision is not known yet: nobody answers (protocol/WIRE.md
        3.1)."""
        if command.code != RequestCode.END_TRANSACTION:
            return False
        try:
            return EndTransactionHeader.from_ext(command.ext).commit_or_rollback == UNKNOWN
        except BadRequest:
            return False

    def _refused_all(self, heard: Heard) -> bool:
        """Whether no request of the input was carried out, as far as its sender was told."""
        whole = self._decoder()
        asked = whole.feed(heard.data)
        if any(one.flag & 2 or one.code in _REPLIES for one in asked):
            return False
        codes = {one.code for one in heard.answers}
        return not codes & {0, 10, 11, 12, _MOVED}

    def _judge(self, heard: Heard) -> None:
        connection = heard.connection
        if connection.closed != heard.broken:
            why = connection._close_reason
            heard.wrong.append(f"closed={connection.closed} ({why}), broken={heard.broken}")
        if connection._close_reason == CloseReason.HANDLER_FAILED:
            heard.wrong.append("a fault of ours has closed the connection")
        answered = Counter(one.opaque for one in heard.answers if one.is_response)
        for opaque in answered - heard.wanted:
            heard.wrong.append(f"request {opaque} has more answers than it wants")
        missing = set(heard.wanted - answered) - heard.late
        if missing and not connection.closed:
            heard.wrong.append(f"requests {sorted(missing)[:5]} have no answer")
        for one in heard.answers:
            remark = one.remark or ""
            if str(self._target.folder) in remark or "Traceback" in remark or ".py" in remark:
                heard.wrong.append(f"a remark shows what is inside: {remark[:200]!r}")

    def _errors_of(self, heard: Heard, which: str = "") -> None:
        for texts in (self._target.errors.texts, self._target.to_loop):
            heard.wrong += [f"an error {which} was logged: {text[:1_500]}" for text in texts]
            texts.clear()


def signature(port: str, heard: Heard) -> str | None:
    """The kind of result of an input of one request; None for others. Inputs of one kind are worth
    keeping once."""
    decoder = FrameDecoder()
    asked = decoder.feed(heard.data)
    if len(asked) > 1 or len(heard.answers) > 1 or (asked and decoder.failed):
        return None
    code = asked[0].code if asked and asked[0].code in _KNOWN else None
    told = [(one.code, _kind(one.remark or "")) for one in heard.answers]
    # Bytes that are no frame are so on each port.
    where = port if port == "name server" else "broker"
    return f"{where} {code} {told}" if asked else _kind(str(decoder.failed or ""))


_KNOWN = frozenset(int(code) for code in RequestCode)


def _kind(text: str) -> str:
    """A text without what differs from one input to the next."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^]]*\]|\([^)]*\)|(?<=[:,;] ).*", "#", text)
    return re.sub(r"\d+", "#", plain)[:32]
