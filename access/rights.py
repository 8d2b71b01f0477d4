"""The rights that an account may have on a topic or a group, as bits (upstream: Permission)."""

from __future__ import annotations

from typing import Final

DENY: Final = 1
#: Needed, never given: one of PUB and SUB.
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8

_TEXTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
_NAMES: Final = {DENY: "DENY", ANY: "PUB or SUB", PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}


def is_right(text: str) -> bool:
    """Whether a text names a right. The reference reads any other text as DENY."""
    return text.strip() in _TEXTS


def parse_right(text: str | None) -> int:
    """The bits of a text; DENY for None, and for a text that names no right."""
    return DENY if text is None else _TEXTS.get(text.strip(), DENY)


def right_name(right: int) -> str:
    """The name of a right as a file of accounts has it."""
    return _NAMES[right]


def allows(owned: int, needed: int) -> bool:
    """Whether who has `owned` has what is needed; DENY refuses beside anything else."""
    if owned & DENY:
        return False
    return bool(owned & (PUB | SUB if needed == ANY else needed))
