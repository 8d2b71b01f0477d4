"""Judges requests by the rules in force (upstream: PlainAccessValidator, PlainPermissionManager).

The order is the reference's: an address of the global white list may do all, without a key; then
the account has to be there; its own white addresses may do all with its key, unsigned; then the
signature counts, then the rights. Anybody with an account may send to the topic of traces.

Every refusal is counted by its reason and logged at most once a minute with the peer; a remark says
what was asked for and names the account, never a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

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
from aerobee.access.needs import Needs, TopicAt, administrator, of_topic
from aerobee.access.rights import PUB, right_name
from aerobee.protocol.codes import request_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import ACCESS_KEY, Signer
from aerobee.protocol.frames.signature import SIGNATURE as SIGNATURE_FIELD
from aerobee.protocol.names import TRACE_TOPIC

log = logging.getLogger("aerobee.access")

_TRACE: Final = Need(TOPIC, TRACE_TOPIC, PUB)
_LOG_EVERY_S: Final = 60.0
# What a peer calls itself is shown so far.
_SHOWN: Final = 64
# Of base64, of the 20 bytes of SHA-1.
_SIGNATURE_CHARACTERS: Final = 28


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
        self._clock = clock
        self._others_open = others_open
        # Of a reason and, where it is known, an account: when it was said last, and how often it
        # was not since.
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        #: How many requests were refused, by reason.
        self.refused = dict.fromkeys(REASONS, 0)
        #: Moves with the rules: what was prepared with older ones is to be forgotten.
        self.changes = 0

    @property
    def rules(self) -> Rules:
        """Those in force."""
        return self._rules

    def use(self, rules: Rules) -> None:
        """Put other rules in force, for every request from now on."""
        self._rules = rules
        self.changes += 1

    def signer(self, access_key: str) -> Signer | None:
        """Of an account that nothing but its signature lets in; None for any other name."""
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

    def may(self, access_key: str, command: Command) -> bool:
        """Whether an account has the rights for a request, signature aside."""
        account = self._rules.accounts.get(access_key)
        needs = self._needs.get(command.code)
        if account is None or needs is None:
            return False
        try:
            for _ in self._judge(command, account, needs):
                pass
        except BadRequest:
            return False
        return True

    def check(self, command: Command, peer: str) -> None:
        """Raises AccessDenied for a request from the address `peer` that is not allowed, and
        BadRequest for one whose body cannot be read."""
        for _ in self.check_in_steps(command, peer):
            pass

    def check_in_steps(self, command: Command, peer: str) -> Iterator[None]:
        """The same, of a body with very many messages or groups: a turn may end at each step."""
        needs = self._needs.get(command.code)
        if needs is None and self._others_open:
            return
        try:
            yield from self._check(command, peer, needs)
        except AccessDenied as error:
            self._refuse(error, command, peer)
            raise

    def _check(self, command: Command, peer: str, needs: Needs | None) -> Iterator[None]:
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
        yield from self._judge(command, account, needs)

    def _judge(self, command: Command, account: Account, needs: Needs | None) -> Iterator[None]:
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
        for need in needs(command, self._topic_at):
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
        whose = error.reason, key if key in self._rules.accounts else ""
        now = self._clock()
        if whose in self._said:
            said, unlogged = self._said[whose]
            self._said[whose] = said, unlogged + 1
            return
        self._said[whose] = now, 0
        log.warning(
            'request refused peer=%s request=%s reason="%s" why=%r',
            peer,
            request_name(command.code),
            error.reason,
            error.remark,
        )

    def report_unlogged(self) -> None:
        """Log how many refusals had no line of their own, a minute after the first of their kind;
        called now and then."""
        now = self._clock()
        over = [whose for whose, (said, _) in self._said.items() if now - said >= _LOG_EVERY_S]
        for whose in over:
            _, unlogged = self._said.pop(whose)
            if unlogged:
                self._said[whose] = now, 0
                reason, key = whose
                text = 'requests refused reason="%s" account=%r unlogged=%d'
                log.warning(text, reason, key or "none here", unlogged)


def _what_is_wrong(signature: str | None) -> str:
    """Of a signature that does not fit. A null is none; a number or a list is its text."""
    if not signature:
        return "the request has no signature; give the client the account's secret key too"
    if len(signature) != _SIGNATURE_CHARACTERS:
        return f"its field Signature is none: one has {_SIGNATURE_CHARACTERS} characters of base64"
    return (
        "the client's secret key is another one than the broker's, or the request was changed on "
        "its way"
    )
