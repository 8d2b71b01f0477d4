"""The one place of the pipeline that chooses between plain and compiled steps of the decoder.

The decoder is complete in numpy and Arrow, and its rules are read there. A step with a compiled
form (`native/decode.pyx`) asks that first. It answers None if anything in the batch is not plain,
and then the step is done as it is written. So an executor without the compiled form gives the same
rows, and what is damaged is judged and named in one place.

Buffers and positions are lent: bytes, memoryviews, int64 arrays of numpy. `bytes` that come back
are numbers of the machine's own order, or what an Arrow array is made of.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from aerobee.native.form import NativeError, chosen_decode
from aerobee.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from aerobee.native import decode


class Entries(Protocol):
    """The entries of the properties of many messages; no message has a name twice."""

    def map(self, dropped: Set[bytes], /) -> tuple[bytes, int, bytes, bytes, bytes, bytes]:
        """Offsets of the map and how many entries it has, offsets and data of their names, the same
        of their values; without those whose names are dropped."""

    def value(self, alternatives: tuple[bytes, ...], /) -> tuple[int, bytes, bytes, bytes]:
        """How many messages have none of the names; validity, offsets and data of the values."""


class Steps(Protocol):
    """The compiled steps."""

    def record_starts(
        self, buffer: Any, position: int, limit: int, magics: tuple[int, ...], /
    ) -> tuple[bytes, int]:
        """Positions of records and the position after the last of them, in any buffer."""

    def kind(self, buffer: Any, starts: Any, /) -> tuple[int, int] | None:
        """The magic that all records have, and the bits for their hosts."""

    def places(
        self,
        buffer: Any,
        starts: Any,
        head_bytes: int,
        topic_length_bytes: int,
        log_offset: int | None,
        /,
    ) -> bytes | None:
        """Five columns of positions, of sound records: body, its end, topic, its end, record's."""

    def numbers(self, buffer: Any, starts: Any, position: int, width: int, /) -> bytes | None:
        """The field of 4 or 8 bytes that lies there in each record."""

    def microseconds(
        self, buffer: Any, starts: Any, position: int, first: int, last: int, /
    ) -> bytes | None:
        """The time in ms that lies there in each record, in us; all are in [first, last]."""

    def crcs(self, buffer: Any, begin: Any, end: Any, /) -> bytes | None:
        """The CRC of each [begin, end) as records have it."""

    def slices(self, buffer: Any, begin: Any, end: Any, /) -> tuple[bytes, bytes] | None:
        """Offsets and data of an Arrow array of the bytes [begin, end)."""

    def hexadecimal(
        self, buffer: Any, starts: Any, fields: tuple[tuple[int, int], ...], /
    ) -> bytes | None:
        """Data of an Arrow array: the digits of some fields (position, width) of each record."""

    def values(
        self, buffer: Any, begin: Any, end: Any, names: tuple[bytes, ...], /
    ) -> list[tuple[int, bytes, bytes, bytes]] | None:
        """The values of each name in the properties at [begin, end), in the form of
        `Entries.value`."""

    def entries(self, text: Any, offsets: Any, /) -> Entries | None:
        """The properties in texts, which begin and end at the offsets (int32)."""


if TYPE_CHECKING:
    _SAME: Steps = decode


@cache
def steps() -> Steps | None:
    """The compiled steps if they are to be taken. Raises PipelineError if they are required and
    missing, or if the environment's wish is not a known word."""
    try:
        return cast("Steps | None", chosen_decode())
    except NativeError as error:
        raise PipelineError(str(error)) from error
