"""A daemon and a name server with accounts in the place of those that everybody may ask.

`Doorkeeper` holds, besides all that `Judge` does:
- what passes the door is what `Doorman` lets pass, and what is refused there is what he refuses; no
  handler is reached past it, and the compiled form serves nobody whom he refuses;
- no answer and no line of the log holds a secret that its request did not bring itself;
- whatever an administrator's request has made of the files, the rules in force are those of the
  files.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from aerobee.access.account_service import AccessService
from aerobee.access.control import AccessControl, Looks, ReadBody, read_at_once
from aerobee.access.errors import AccessDenied, AccountFileError
from aerobee.access.files.account_files import AccountFiles, differences
from aerobee.access.needs import BROKER_NEEDS, NAME_SERVER_NEEDS
from aerobee.broker.routing.accounts import topic_of
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.frames.signature import signed
from tests.fuzz.doorman import Doorman
from tests.fuzz.runs import Plan
from tests.fuzz.seeds import (
    ACCOUNT_SEEDS,
    ADMIN,
    BROKER_SEEDS,
    EVERYDAY,
    GIVEN_SECRET,
    GROUP,
    LISTING_SEEDS,
    NAME_SERVER_SEEDS,
    NEIGHBOUR,
    OWNER,
    PLAIN_SEEDS,
    STRANGER,
    TOPIC,
    Seed,
)
from tests.fuzz.signed import SignedGrammar
from tests.fuzz.target import PIECE, Heard, Judge, Target

#: The secrets by access key.
SECRETS: Final = {
    name: f"hidden-of-{name}" for name in (ADMIN, OWNER, STRANGER, EVERYDAY, NEIGHBOUR)
}
_HIDDEN: Final = (*SECRETS.values(), GIVEN_SECRET)
ACCOUNTS: Final = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRETS[ADMIN]}
  admin: true
- accessKey: {OWNER}
  secretKey: {SECRETS[OWNER]}
  topicPerms:
  - {TOPIC}=PUB|SUB
  groupPerms:
  - {GROUP}=SUB
- accessKey: {STRANGER}
  secretKey: {SECRETS[STRANGER]}
  topicPerms:
  - Other=PUB|SUB
  groupPerms:
  - OtherReaders=SUB
- accessKey: {EVERYDAY}
  secretKey: {SECRETS[EVERYDAY]}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - {TOPIC}=SUB
  groupPerms:
  - {GROUP}=DENY
- accessKey: {NEIGHBOUR}
  secretKey: {SECRETS[NEIGHBOUR]}
  whiteRemoteAddress: 127.0.0.1
"""
#: Requests that the compiled form serves, without a handler.
_SHORT_CUTS: Final = frozenset(
    (
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    )
)
#: The broker's port by two more names: for the requests that change accounts, so that the rules
#: stand still while others run; and for those that the compiled form serves.
CHANGES, HOT = "accounts", "hot"
_OF_BROKER: Final = BROKER_SEEDS + LISTING_SEEDS
_SEEDS: Final = {
    "broker": _OF_BROKER,
    "vip": _OF_BROKER,
    "name server": NAME_SERVER_SEEDS,
    CHANGES: ACCOUNT_SEEDS,
    HOT: PLAIN_SEEDS * 4 + LISTING_SEEDS,
}
_TURNS: Final = (*("broker",) * 4, *(HOT,) * 3, "vip", "name server", CHANGES, CHANGES)
#: Answers to sends and pulls that were carried out.
_DONE: Final = frozenset(
    (
        *(ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        *(ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.PULL_NOT_FOUND),
        *(ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED),
    )
)
_PEER: Final = "127.0.0.1"


def _grammars(rng: random.Random) -> dict[str, SignedGrammar]:
    return {
        port: SignedGrammar(rng, seeds, SECRETS, calm=port == HOT) for port, seeds in _SEEDS.items()
    }


#: The plan of these runs, in the place of `runs.OPEN`.
SIGNED: Final = Plan(_grammars, _TURNS, tuple)


class Lines(logging.Handler):
    """Every line of the log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Watch:
    """One door: its doorman looks over its shoulder."""

    def __init__(self, control: AccessControl, doorman: Doorman) -> None:
        self.control = control
        self.doorman = doorman
        self.wrong: list[str] = []
        # All that were let pass and not handled yet: a name server's may wait for a save. Held, so
        # that none's identity becomes another's.
        self._passed: dict[int, Command] = {}
        # `check` asks it too.
        self._check = control.check_in_steps
        control.check_in_steps = self._watched  # type: ignore[method-assign]

    def look_at(self, handlers: MutableMapping[int, Callable[..., Any]]) -> None:
        """Have it seen who reaches a handler."""

        def behind(handle: Callable[..., Any]) -> Callable[..., Any]:
            def reached(connection: Any, command: Command) -> Any:
                if self._passed.pop(id(command), None) is not command:
                    self.wrong.append(f"code {command.code} was handled, and nobody had asked")
                return handle(connection, command)

            return reached

        handlers.update({code: behind(handle) for code, handle in list(handlers.items())})

    def why_not(self, command: Command) -> str:
        """Why the doorman refuses it now; "" if he does not, or cannot read it."""
        try:
            return self.doorman.why_not(self.control.rules, command, _PEER)
        except BadRequest:
            return ""

    def _watched(self, command: Command, peer: str, read: ReadBody = read_at_once) -> Looks:
        why = self.why_not(command)
        try:
            yield from self._check(command, peer, read)
        except AccessDenied as error:
            if not why:
                self.wrong.append(f"code {command.code} may pass, and was refused: {error.remark}")
            raise
        if why:
            self.wrong.append(f"code {command.code} was let through: {why}")
        self._passed[id(command)] = command


class GuardedTarget(Target):
    """`Target` with accounts, each port watched."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.home = folder / "home"
        self.file = self.home / "conf" / "plain_acl.yml"
        self.file.parent.mkdir(parents=True)
        self.file.write_text(ACCOUNTS)
        self.lines = Lines()
        super().__init__(
            folder,
            acl_enabled=True,
            nameserver_acl_enabled=True,
            rocketmq_home=str(self.home),
            **settings,
        )

    def _made_name_server(self, settings: Settings) -> NameServer:
        path = str(self.folder / "kv.json")
        return NameServer.from_settings(settings.with_changes(nameserver_kv_path=path))

    async def __aenter__(self) -> GuardedTarget:
        await super().__aenter__()
        log = logging.getLogger("aerobee")
        log.addHandler(self.lines)
        self._level = log.level
        # Changes of accounts are told there.
        log.setLevel(logging.INFO)
        core, names = self._daemon.core, self._name_server
        assert core.access is not None
        assert names.access is not None
        self._services = (core.access, names.access)
        broker = Doorman(BROKER_NEEDS, partial(topic_of, core.store), others_open=False)
        name_server = Doorman(NAME_SERVER_NEEDS, lambda _offset: None, others_open=True)
        door, other = (
            Watch(service.control, doorman)
            for service, doorman in zip(self._services, (broker, name_server), strict=True)
        )
        door.look_at(core.main_router._handlers)
        door.look_at(core.vip_router._handlers)
        other.look_at(names._requests._handlers)
        self.watches = dict.fromkeys(("broker", "vip", CHANGES, HOT), door)
        self.watches["name server"] = other
        for name in (CHANGES, HOT):
            self._ports[name] = self._ports["broker"]
        return self

    async def __aexit__(self, *of: object) -> None:
        log = logging.getLogger("aerobee")
        log.removeHandler(self.lines)
        log.setLevel(self._level)
        await super().__aexit__(*of)

    @property
    def service(self) -> AccessService:
        """The broker's accounts."""
        return self._services[0]

    async def changed(self) -> None:
        """Wait for changes that nobody waits for: those of requests without an answer."""
        await self.loop.run_in_executor(self.service._thread, lambda: None)

    async def put_back(self) -> None:
        """The accounts of the beginning, whatever requests have made of them."""
        if self.file.read_text() == ACCOUNTS:
            return
        # Replace it in one go: a reader of a half-written file would report a fault.
        new = self.file.with_suffix(".new")
        new.write_text(ACCOUNTS)
        new.replace(self.file)
        for service in self._services:
            await service.read_again()

    async def ask(self, seed: Seed, by: str = ADMIN, port: str = "broker") -> Command:
        """A request that is right, signed by an account; its answer."""
        ext = signed(seed.ext, seed.body, by, SECRETS[by])
        command = Command(code=seed.code, ext=ext, body=seed.body, opaque=1)
        heard = self.connect(port, command.encode())
        heard.wanted[1] = 1
        await self.feed(heard, (len(heard.data),))
        await self.settle([heard])
        self.hang_up([heard])
        [answer] = [one for one in heard.answers if one.is_response]
        return answer

    async def furnish(self) -> None:
        """Provide the objects of requests: messages, a group and its offsets."""
        for seed in BROKER_SEEDS[:10]:
            await self.ask(seed)


class Doorkeeper(Judge):
    """Judges what a broker with accounts has done."""

    def __init__(self, target: GuardedTarget) -> None:
        super().__init__(target)
        self._guarded = target
        self._watch = target.watches["broker"]
        self._changes = 0
        #: For each input the numbers of its requests that were to be refused when it came.
        self._refused: dict[int, dict[int, str]] = {}

    async def batch(self, port: str, inputs: Sequence[bytes], rng: random.Random) -> list[Heard]:
        target = self._guarded
        self._watch = target.watches[port]
        self._changes = self._watch.control.changes
        heard = await super().batch(port, inputs, rng)
        await target.changed()
        heard[-1].wrong += self._wrong_rules()
        await target.put_back()
        self._refused.clear()
        return heard

    def _read_twice(self, heard: Heard) -> None:
        self._refused[id(heard)] = {
            command.opaque: why
            for command in FrameDecoder().feed(heard.data)
            if (why := self._watch.why_not(command))
        }
        super()._read_twice(heard)

    def _is_unanswered(self, heard: Heard, command: Command) -> bool:
        """A refused request is answered, even where nobody answers a granted request."""
        return command.opaque not in self._refused[id(heard)] and super()._is_unanswered(
            heard, command
        )

    def _pieces(self, port: str, data: bytes, rng: random.Random) -> Sequence[int]:
        """In pieces nothing is served the short way."""
        return (PIECE,) if port == HOT else super()._pieces(port, data, rng)

    def _judge(self, heard: Heard) -> None:
        super()._judge(heard)
        sent = heard.data.decode("latin-1")
        for one in heard.answers:
            said = f"{one.remark} {one.ext} {bytes(one.body).decode('latin-1')}"
            if any(secret in said and secret not in sent for secret in _HIDDEN):
                heard.wrong.append(f"an answer shows a secret: {said[:200]}")
        if self._changes == self._watch.control.changes:
            heard.wrong += self._short_cuts(heard)

    def _short_cuts(self, heard: Heard) -> Iterator[str]:
        """Sends and pulls that were carried out, and were to be refused: no handler need have been
        reached. Only while the rules stood still, and by numbers that one request has."""
        refused = self._refused[id(heard)]
        asked = FrameDecoder().feed(heard.data)
        numbers = [one.opaque for one in asked]
        codes = {one.opaque: one.code for one in heard.answers if one.is_response}
        for one in asked:
            if one.code in _SHORT_CUTS and numbers.count(one.opaque) == 1:
                why = refused.get(one.opaque)
                if why and codes.get(one.opaque) in _DONE:
                    yield f"code {one.code} was served: {why}"

    def _errors_of(self, heard: Heard, which: str = "") -> None:
        super()._errors_of(heard, which)
        target = self._guarded
        for watch in target.watches.values():
            heard.wrong += watch.wrong
            watch.wrong.clear()
        for text in target.lines.texts:
            if any(secret in text for secret in _HIDDEN):
                heard.wrong.append(f"the log shows a secret: {text[:300]}")
        target.lines.texts.clear()

    def _wrong_rules(self) -> Iterator[str]:
        """The rules that are in force and not in the files, or the other way round."""
        service = self._guarded.service
        try:
            files = AccountFiles(str(self._guarded.home)).load().rules
        except AccountFileError as error:
            yield f"the files cannot be taken any more: {error}"
            return
        yield from (f"not in force: {line}" for line in differences(service.control.rules, files))
