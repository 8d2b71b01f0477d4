"""Judges requests by the rules in force (upstream: PlainAccessValidator, PlainPermissionManager).

The order is the reference's: an address of the global white list may do all, without a key; then
the account has to be there; its own white addresses may do all with its key, unsigned; then the
signature counts, then the rights. Anybody with an account may send to the topic of traces.

Every refusal is counted by its reason; the first of a reason and account is logged with the peer,
the others once a minute with their number. A remark says what was asked for and names the account,
never a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from aerobee.access.accounts import TOPIC, Account, Need, Rules
from aerobee.access.errors import (
    ADMIN,
    NO_KEY,
    REASONS,
    RIGHT,
    SIGNATURE,
    UNKNOWN_KEY,
    AccessDenied,
)
from aerobee.access.needs import InBody, Needs, TopicAt, administrator, of_topic
from aerobee.access.rights import PUB, right_name
from aerobee.protocol.codes import request_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import ACCESS_KEY, Signer
from aerobee.protocol.frames.signature import SIGNATURE as SIGNATURE_FIELD
from aerobee.protocol.names import TRACE_TOPIC
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.access")

_TRACE: Final = Need(TOPIC, TRACE_TOPIC, PUB)
#: A judgement on the way: where a turn may end, and a reading of the body that it waits for.
Looks: TypeAlias = Generator["asyncio.Future[Any] | None", None, None]
T = TypeVar("T")
# Characters that are shown of a name which a peer gives itself.
_SHOWN: Final = 64
# The 20 bytes of SHA-1 in base64.
_SIGNATURE_CHARACTERS: Final = 28


class ReadBody(Protocol):
    """Has a body read, and may wait for that; raises what `parse` raises."""

    def __call__(
        self, parse: Callable[[bytes], T], body: bytes
    ) -> Generator[asyncio.Future[Any], None, T]: ...


def read_at_once(
    parse: Callable[[bytes], T], body: bytes
) -> Generator[asyncio.Future[Any], None, T]:
    """Where nobody else waits, or the body is small."""
    yield from ()
    return parse(body)


class AccessControl:
    """The rules, and what they have refused. Loop thread only."""

    def __init__(
        self,
        rules: Rules,
        needs: Mapping[int, Needs],
        topic_at: TopicAt,
        clock: Callable[[], float],
        *,
        others_open: bool = False,
    ) -> None:
        """`topic_at` finds the topic of a message in the log. `others_open`: codes without a row
        need nothing, not even an account (a name server's); else they are refused."""
        self._rules = rules
        self._needs = needs
        self._topic_at = topic_at
        self._others_open = others_open
        # A kind of line is a reason and, where it is known, an account.
        self._sums = SummedLog(clock)
        #: How many requests were refused, by reason.
        self.refused = dict.fromkeys(REASONS, 0)
        #: Moves with the rules: what was prepared with older ones is to be forgotten.
        self.changes = 0

    @property
    def rules(self) -> Rules:
        """Those in force."""
        return self._rules

    def put_in_force(self, rules: Rules) -> None:
        """Judge every request from now on by other rules."""
        self._rules = rules
        self.changes += 1

    def signer(self, access_key: str) -> Signer | None:
        """The signer of an account that only its signature lets in; None for any other name."""
        account = self._rules.accounts.get(access_key)
        return None if account is None or account.addresses.text else account.signer

    def account_of(self, command: Command) -> str:
        """The access key in a request that was let in; empty where it has none, or no account's."""
        account = self._rules.accounts.get(command.ext.get(ACCESS_KEY, ""))
        return "" if account is None else account.access_key

    def may_see(self, access_key: str, peer: str, topic: str) -> bool:
        """Whether a producer may be sent a message of a topic to decide about: a client of that
        account (empty for none) at the address `peer`, who may send to the topic."""
        rules = self._rules
        if rules.is_white(peer):
            return True
        account = rules.accounts.get(access_key)
        if account is None:
            return False
        return account.addresses.matches(peer) or account.has(of_topic(topic, PUB))

    def check_send(self, command: Command, peer: str, topic: str) -> None:
        """Raises AccessDenied for a request that was let in, from the address `peer`, of whom may
        not send to a topic that only the handler knows."""
        self._check_later(command, peer, of_topic(topic, PUB))

    def check_sends_somewhere(self, command: Command, peer: str) -> None:
        """Raises AccessDenied for an account that may send to no topic at all."""
        self._check_later(command, peer, None)

    def _check_later(self, command: Command, peer: str, need: Need | None) -> None:
        """`need` None: to send to any topic."""
        rules = self._rules
        if rules.is_white(peer):
            return
        account = rules.accounts.get(command.ext.get(ACCESS_KEY, ""))
        if account is not None:
            if account.addresses.matches(peer):
                return
            if account.sends_somewhere if need is None else account.has(need) or need == _TRACE:
                return
        what = "some topic" if need is None else f"{need.kind}:{need.name[:_SHOWN]}"
        whose = "nobody" if account is None else account.access_key
        error = AccessDenied(
            RIGHT,
            f"No default permission for {what}: accessKey={whose} needs {right_name(PUB)} on it",
        )
        self._refuse(error, command, peer)
        raise error

    def may(self, access_key: str, command: Command) -> bool:
        """Whether an account has the rights for a request, signature aside."""
        account = self._rules.accounts.get(access_key)
        needs = self._needs.get(command.code)
        if account is None or needs is None:
            return False
        try:
            for _ in self._judge(command, account, needs, read_at_once):
                pass
        except BadRequest:
            return False
        return True

    def check(self, command: Command, peer: str) -> None:
        """Raises AccessDenied for a request from the address `peer` that is not allowed, and
        BadRequest for a request whose body cannot be read."""
        for _ in self.check_in_steps(command, peer):
            pass

    def check_in_steps(self, command: Command, peer: str, read: ReadBody = read_at_once) -> Looks:
        """Check a request with a large body as `check` does: a turn may end at each step. `read`
        reads a body of JSON, and may wait for it."""
        needs = self._needs.get(command.code)
        if needs is None and self._others_open:
            return
        try:
            yield from self._check(command, peer, needs, read)
        except AccessDenied as error:
            self._refuse(error, command, peer)
            raise

    def _check(self, command: Command, peer: str, needs: Needs | None, read: ReadBody) -> Looks:
        rules = self._rules
        if rules.is_white(peer):
            return
        key = command.ext.get(ACCESS_KEY)
        if not key:
            raise AccessDenied(
                NO_KEY,
                "No accessKey is configured: this broker asks for an account; give the client an "
                "access key and a secret key",
            )
        account = rules.accounts.get(key)
        if account is None:
            raise AccessDenied(
                UNKNOWN_KEY,
                f"No acl config for {key[:_SHOWN]}: no file of accounts here has this access key",
            )
        if account.addresses.matches(peer):
            return
        if not account.signer.has_signed(command.ext, command.body, command.version):
            raise AccessDenied(
                SIGNATURE,
                f"Check signature failed for accessKey={key}: "
                f"{_what_is_wrong(command.ext.get(SIGNATURE_FIELD))}",
            )
        yield from self._judge(command, account, needs, read)

    def _judge(
        self, command: Command, account: Account, needs: Needs | None, read: ReadBody
    ) -> Looks:
        if needs is None:
            raise AccessDenied(
                RIGHT, f"request code {command.code} is open to nobody while accounts are asked for"
            )
        if needs is administrator:
            if not account.admin:
                raise AccessDenied(
                    ADMIN,
                    f"Need admin permission for request code={command.code} "
                    f"({request_name(command.code)}), but accessKey={account.access_key} is not",
                )
            return
        if account.may_everything:
            return
        if isinstance(needs, InBody):
            asked = needs.of((yield from read(needs.parse, command.body)))
        else:
            asked = needs(command, self._topic_at)
        for need in asked:
            if need is None:
                yield None
            elif not account.has(need) and need != _TRACE:
                raise AccessDenied(
                    RIGHT,
                    f"No default permission for {need.kind}:{need.name[:_SHOWN]}: "
                    f"accessKey={account.access_key} needs {right_name(need.right)} on it",
                )

    def _refuse(self, error: AccessDenied, command: Command, peer: str) -> None:
        self.refused[error.reason] += 1
        key = command.ext.get(ACCESS_KEY, "")
        account = key if key in self._rules.accounts else ""
        self._sums.add(
            log,
            logging.WARNING,
            (error.reason, account),
            'request refused peer=%s request=%s reason="%s" account=%r why=%r',
            peer,
            request_name(command.code),
            error.reason,
            account or "none here",
            error.remark,
        )

    def report_unlogged(self) -> None:
        """Log how many refusals had no line of their own, a minute after the first of their kind;
        called now and then."""
        self._sums.report()


def _what_is_wrong(signature: str | None) -> str:
    """Says what is wrong with a signature that does not fit. A null counts as no signature, a
    number or a list as its text."""
    if not signature:
        return "the request has no signature; give the client the account's secret key too"
    if len(signature) != _SIGNATURE_CHARACTERS:
        return f"its field Signature is none: one has {_SIGNATURE_CHARACTERS} characters of base64"
    return (
        "the client's secret key is another one than the broker's, or the request was changed on "
        "its way"
    )
