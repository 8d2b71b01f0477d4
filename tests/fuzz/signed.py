"""Hostile inputs for a broker with accounts: requests that are signed, and signatures that lie.

Half of the requests are signed as they should be, by one of the file's accounts, so that what is
bent in them reaches the table of rights and the handlers. The others lie: no key, another account's
secret, a signature that is cut, longer, of an earlier request, or that is followed by a change;
names that are there twice, in another case, or huge.

Whether a request may pass is not known here. `doorman.py` says it, of what has really been sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aerobee.protocol.frames.signature import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, signed
from tests.fuzz.grammar import NUMBERS, TEXTS, Fields, Grammar
from tests.fuzz.seeds import Seed

# The share of requests that are signed as they should be.
_HONEST: Final = 0.5
_HUGE: Final = (300, 5_000, 70_000)
#: Up to 399 a client does not sign every field.
_VERSIONS: Final = (401, 401, 401, 399, 398, 0, -1, 453, 32_767)

_Lie = Callable[["SignedGrammar", Fields, bytes], tuple[Fields, bytes]]


class SignedGrammar(Grammar):
    """Inputs of those who have an account, and of those who say so."""

    def __init__(
        self,
        rng: random.Random,
        seeds: Sequence[Seed],
        accounts: Mapping[str, str],
        *,
        calm: bool = False,
    ) -> None:
        """`accounts`: the secret of each access key. `calm`: little is bent but who asks, so that
        requests stay such as the compiled form serves."""
        super().__init__(rng, seeds)
        if calm:
            self._bends = (0, 0, 0, 0, 0, 0, 1)
        self._accounts = dict(accounts)
        #: Signatures of requests before this one.
        self._earlier = ["x" * 28]

    def _presented(self, ext: dict[str, str], body: bytes) -> tuple[Fields, bytes]:
        rng = self._rng
        self._version = rng.choice(_VERSIONS)
        key, secret = rng.choice(list(self._accounts.items()))
        good = list(signed(ext, body, key, secret).items())
        if rng.random() < _HONEST:
            given, sent = good, body
        else:
            given, sent = rng.choice(_LIES)(self, good, body)
        self._earlier = [*self._earlier[-50:], dict(good)[SIGNATURE]]
        return given, sent

    # --- lies, each about a request that is signed as it should be ------------------------------

    def _no_signature(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        left_out = self._rng.choice(((SIGNATURE,), (ACCESS_KEY,), (SIGNATURE, ACCESS_KEY)))
        return [pair for pair in good if pair[0] not in left_out], body

    def _other_secret(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        """Sign in the name of an account, with the secret of another, or with a secret that nobody
        has."""
        key, secret = self._rng.choice(list(self._accounts)), "another-secret"
        if self._rng.random() < 0.5:
            secret = self._rng.choice([one for name, one in self._accounts.items() if name != key])
        return list(signed(_unsigned(good), body, key, secret).items()), body

    def _other_name(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        names = [*self._accounts, "nobody-here", "", *TEXTS]
        return _replaced(good, ACCESS_KEY, self._rng.choice(names)), body

    def _unknown_account(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        name = self._rng.choice(("nobody-here", *TEXTS))
        return list(signed(_unsigned(good), body, name, "another-secret").items()), body

    def _bent_signature(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        rng = self._rng
        given = dict(good)[SIGNATURE]
        bent = rng.choice(
            (
                given[: rng.randrange(len(given))], given + "=", given + "\n", " " + given,
                given + "\0", given.swapcase(), given.rstrip("="), given[::-1], given * 2,
                given.replace("=", "A"), rng.choice(TEXTS), rng.choice(NUMBERS),
            )
        )  # fmt: skip
        return _replaced(good, SIGNATURE, bent), body

    def _of_an_earlier_one(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        return _replaced(good, SIGNATURE, self._rng.choice(self._earlier)), body

    def _changed_after(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        rng = self._rng
        roll = rng.random()
        if roll < 0.3:
            return good, self.bent(body, 2)
        name, value = rng.choice(good)
        if roll < 0.6 and name not in (ACCESS_KEY, SIGNATURE):
            return _replaced(good, name, rng.choice((*TEXTS, *NUMBERS, value + "x"))), body
        if roll < 0.75:
            return [pair for pair in good if pair[0] != name], body
        more = rng.choice(("more", UNIQUE_KEY_QUERY, name.upper(), "\ud83d"))
        return [*good, (more, rng.choice(("", "1", "true")))], body

    def _there_twice(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        rng = self._rng
        name, value = rng.choice(good) if rng.random() < 0.4 else rng.choice(_signature_of(good))
        others = (value, "", *self._accounts, *self._earlier[-3:], rng.choice(TEXTS))
        place = rng.randrange(len(good) + 1)
        return [*good[:place], (name, rng.choice(others)), *good[place:]], body

    def _other_case(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        cases = (
            str.lower,
            str.upper,
            str.swapcase,
            lambda name: name + " ",
            lambda name: "\0" + name,
        )
        change = self._rng.choice(cases)
        names = self._rng.choice(((ACCESS_KEY,), (SIGNATURE,), (ACCESS_KEY, SIGNATURE)))
        return [(change(name) if name in names else name, value) for name, value in good], body

    def _huge(self, good: Fields, body: bytes) -> tuple[Fields, bytes]:
        """Signed as it should be where it is another field that is huge."""
        rng = self._rng
        text = rng.choice(("A", "=", "\ud83d", "\u4e16", "\x01")) * rng.choice(_HUGE)
        if rng.random() < 0.7:
            return _replaced(good, rng.choice((ACCESS_KEY, SIGNATURE)), text), body
        key = dict(good)[ACCESS_KEY]
        ext = {**_unsigned(good), rng.choice(("more", "A", "z")): text}
        return list(signed(ext, body, key, self._accounts[key]).items()), body


def _unsigned(fields: Fields) -> dict[str, str]:
    return {name: value for name, value in fields if name not in (ACCESS_KEY, SIGNATURE)}


def _signature_of(fields: Fields) -> Fields:
    return [(name, value) for name, value in fields if name in (ACCESS_KEY, SIGNATURE)]


def _replaced(fields: Fields, name: str, value: str) -> Fields:
    return [(one, value if one == name else old) for one, old in fields]


_LIES: Final[Sequence[_Lie]] = (
    SignedGrammar._no_signature,
    SignedGrammar._other_secret,
    SignedGrammar._other_name,
    SignedGrammar._unknown_account,
    SignedGrammar._bent_signature,
    SignedGrammar._of_an_earlier_one,
    SignedGrammar._changed_after,
    SignedGrammar._there_twice,
    SignedGrammar._other_case,
    SignedGrammar._huge,
)
