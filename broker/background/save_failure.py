"""Why a table could not be saved, in two parts, so that a person reads a fault of several tables
once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aerobee.store.disk.files import is_full


class SaveFailure(NamedTuple):
    """`what` names the file, or its content; `why` is the fault alone."""

    what: str
    why: str

    @classmethod
    def of(cls, what: str, error: BaseException) -> SaveFailure:
        """The failure of a save that raised `error`, which may have been made for a client of an
        OSError."""
        fault = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(fault, OSError) or fault.strerror is None:
            return cls(what, str(error))
        why = f"the disk is full ({fault.strerror})" if is_full(fault) else fault.strerror
        return cls(what, why)

    def __str__(self) -> str:
        return f"{self.what} cannot be saved: {self.why}"


def sentence_of(failures: Iterable[SaveFailure]) -> str:
    """A sentence of all failures, each fault once."""
    by_fault: dict[str, list[str]] = {}
    for what, why in failures:
        by_fault.setdefault(why, []).append(what)
    return "; ".join(str(SaveFailure(", ".join(what), why)) for why, what in by_fault.items())
