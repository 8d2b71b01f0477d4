"""Subscriptions: which messages of a topic a consumer gets, decided by their tag hash.

A TAG expression is `*` (or nothing) for all messages, else tags joined by `||`; blanks around a tag
do not count (protocol/WIRE.md 4.2). The broker compares the 32-bit hash in the consume queue with
the hashes of the tags (6.7); the client compares the tags themselves, so a collision costs one
useless delivery to the client and no more.

Hashes are always derived here from the tags: clients exist that send tags only, or wrong hashes.
"""

from collections.abc import Generator, Iterable

import msgspec

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import TAG_TYPE, TypedExpression
from aerobee.protocol.hashing import java_hash, tag_code

ALL_MESSAGES = "*"
TAG_SEPARATOR = "||"

# An expression of nothing but blanks names no tag and matches nothing (what the reference does):
# its one code is no 32-bit number, so no message has it.
_MATCHES_NOTHING = frozenset({1 << 40})
# Tags of one step: half a millisecond's worth.
_STEP_TAGS = 1000
# The characters that Java's trim takes off.
_BLANKS = "".join(map(chr, range(33)))


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One topic of a consumer group. Empty `codes` means every message; `version` is client ms."""

    topic: str
    expression: str = ALL_MESSAGES
    type: str = TAG_TYPE
    version: int = 0
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    class_filter: bool = False

    @property
    def typed_expression(self) -> TypedExpression:
        """The type and the text of the expression."""
        return self.type, self.expression

    def matches(self, tags_code: int) -> bool:
        """Whether a message with this tag hash may match."""
        return not self.codes or tags_code in self.codes


def parse_tag_expression(topic: str, expression: str | None, version: int = 0) -> Subscription:
    """The subscription that a TAG expression means.

    Raises BadRequest (SUBSCRIPTION_PARSE_FAILED) for an expression of separators alone.
    """
    if expression is None or expression in ("", ALL_MESSAGES):
        return Subscription(topic, ALL_MESSAGES, TAG_TYPE, version)
    return tag_subscription(topic, expression, _parts(expression), version)


def _parts(expression: str) -> list[str]:
    parts = expression.split(TAG_SEPARATOR)
    if not any(parts):
        raise BadRequest(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {expression[:64]!r} names no tag",
        )
    return parts


def tag_subscription(
    topic: str, expression: str, parts: Iterable[str], version: int
) -> Subscription:
    """The subscription to some tags; blank ones are dropped."""
    tags = frozenset(tag for part in parts if (tag := part.strip(_BLANKS)))
    codes = frozenset(map(tag_code, tags)) if tags else _MATCHES_NOTHING
    return Subscription(topic, expression, TAG_TYPE, version, tags, codes)


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """The hashes an expression lets through, None for all; BadRequest as `parse_tag_expression`."""
    return parse_tag_expression("", expression).codes or None


def tag_codes_in_steps(expression: str) -> Generator[None, None, frozenset[int] | None]:
    """Compute `tag_codes` of an expression with many tags in steps: 40,000 tags take 40 ms."""
    if expression == ALL_MESSAGES:
        return None
    parts = _parts(expression)
    codes: set[int] = set()
    for start in range(0, len(parts), _STEP_TAGS):
        some = parts[start : start + _STEP_TAGS]
        codes.update([java_hash(tag) for part in some if (tag := part.strip(_BLANKS))])
        yield
    return frozenset(codes) or _MATCHES_NOTHING
