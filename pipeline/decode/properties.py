"""The properties of many messages at once, in Arrow; filters over them.

Rules as in `protocol/message/properties.py`: entries end with U+0002, names with U+0001; an entry
without a name or a value is dropped; of a repeated name the last entry counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode import compiled
from aerobee.pipeline.decode.arrow_values import of_buffers, slices
from aerobee.protocol.filters.property_filter import TypedExpression, compile_expression
from aerobee.protocol.message.properties import SYSTEM_PROPERTIES

_ENTRY_END, _NAME_END = "\x02", "\x01"
# The names that fit into the bits of a number, with room for a name that is there a few hundred
# times.
_FEW_NAMES = 48
_SYSTEM = pa.array(sorted(SYSTEM_PROPERTIES), pa.string())
_SYSTEM_BYTES = frozenset([name.encode() for name in SYSTEM_PROPERTIES])


class _Entries(NamedTuple):
    """The message each entry belongs to, its name and its value; names also as codes of kinds."""

    parents: np.ndarray
    names: pa.Array
    values: pa.Array
    codes: np.ndarray
    kinds: pa.Array


class Properties:
    """The properties of `len(text)` messages; `text` is a string array without nulls."""

    def __init__(self, text: pa.Array) -> None:
        self.text = text

    def as_map(self, *, system: bool = True) -> pa.Array:
        """map<string, string> for each message; with or without SYSTEM_PROPERTIES."""
        if self._compiled is not None:
            return self._compiled_map(frozenset() if system else _SYSTEM_BYTES)
        parents, names, values, codes, kinds = self._entries
        if not system:
            own = pc.invert(pc.is_in(kinds, value_set=_SYSTEM)).to_numpy(zero_copy_only=False)
            kept = own[codes]
            parents = parents[kept]
            names, values = names.filter(pa.array(kept)), values.filter(pa.array(kept))
        offsets = np.zeros(len(self.text) + 1, np.int32)
        np.cumsum(np.bincount(parents, minlength=len(self.text)), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def as_headers(self, *, system: bool = True) -> pa.Array:
        """A list of name and value (bytes) for each message, as Kafka's source gives headers."""
        entries = self.as_map(system=system)
        pairs = pa.StructArray.from_arrays(
            [entries.keys, entries.items.view(pa.binary())], ["key", "value"]
        )
        return pa.ListArray.from_arrays(entries.offsets, pairs)

    def as_json(self, *, system: bool = True) -> pa.Array:
        """A JSON object for each message, as RocketMQ's own Spark connector gives them."""
        return pa.array(
            [
                json.dumps(dict(entries), ensure_ascii=False)
                for entries in self.as_map(system=system).to_pylist()
            ],
            pa.string(),
        )

    def value(self, *alternatives: str) -> pa.Array:
        """The value of the first of these names that a message has; null without any of them."""
        if self._compiled is not None:
            names = tuple([name.encode() for name in alternatives])
            without, bits, *buffers = self._compiled.value(names)
            return of_buffers(pa.string(), len(self.text), bits if without else None, *buffers)
        parents, _, values, codes, kinds = self._entries
        found = np.full(len(self.text), -1, np.int64)
        for name in reversed(alternatives):
            places = np.flatnonzero(codes == pc.index(kinds, name).as_py())
            found[parents[places]] = places
        missing = found < 0
        return values.take(pa.array(found, mask=missing if missing.any() else None))

    @cached_property
    def _compiled(self) -> compiled.Entries | None:
        """The entries as the compiled form finds them; it leaves texts with a repeated name, and
        very many names, to `_entries`."""
        steps = compiled.steps()
        if steps is None or not len(self.text):
            return None
        _, offsets, data = self.text.buffers()
        if data is None:
            return None
        own = np.frombuffer(offsets, np.int32)[self.text.offset :][: len(self.text) + 1]
        return steps.entries(np.frombuffer(data, np.uint8), own)

    def _compiled_map(self, dropped: frozenset[bytes]) -> pa.Array:
        assert self._compiled is not None
        lists, count, *buffers = self._compiled.map(dropped)
        names = of_buffers(pa.string(), count, None, *buffers[:2])
        values = of_buffers(pa.string(), count, None, *buffers[2:])
        offsets = of_buffers(pa.int32(), len(self.text) + 1, None, lists)
        return pa.MapArray.from_arrays(offsets, names, values)

    @cached_property
    def _entries(self) -> _Entries:
        found = _cut(self.text)
        return _last_of_each(*(found if found is not None else _split(self.text)))


def _cut(text: pa.Array) -> tuple[np.ndarray, pa.Array, pa.Array] | None:
    """The result of `_split`, for texts in which every entry has a name, a value and one U+0001, as
    in nearly all messages. It looks for the two separators in all texts at once."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset :][: len(text) + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(text) else (0, 0)
    if first == last:
        return None
    data = np.frombuffer(text.buffers()[2], np.uint8)[first:last]
    starts, ends = offsets[:-1] - first, offsets[1:] - first
    filled = np.flatnonzero(ends > starts)
    # Entries end at a separator, and at the end of a text that does not end in one.
    closed = data[ends[filled] - 1] == ord(_ENTRY_END)
    own_ends = ends[filled[~closed]]
    entry_ends = np.flatnonzero(data == ord(_ENTRY_END))
    if len(own_ends):
        entry_ends = np.sort(np.concatenate([entry_ends, own_ends]))
    name_ends = np.flatnonzero(data == ord(_NAME_END))
    if len(name_ends) != len(entry_ends):
        return None
    # The next entry begins after a separator, and the next text after the end of a text.
    firsts = np.searchsorted(name_ends, starts[filled])
    entries_of = np.diff(firsts, append=len(name_ends))
    parents = np.repeat(np.arange(len(filled)), entries_of)
    entry_starts = np.concatenate([[0], entry_ends[:-1] + 1])
    begins = np.flatnonzero(np.concatenate([[True], parents[1:] != parents[:-1]]))
    entry_starts[begins] = starts[filled][parents[begins]]
    if not ((entry_starts < name_ends) & (name_ends + 1 < entry_ends)).all():
        return None
    names = slices(data, entry_starts, name_ends)
    values = slices(data, name_ends + 1, entry_ends)
    # Parts that are cut at ASCII out of UTF-8 are UTF-8.
    return filled[parents], names.view(pa.string()), values.view(pa.string())


def _split(text: pa.Array) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Parents, names and values of the entries of any texts."""
    lists = pc.split_pattern(text, _ENTRY_END)
    entries = lists.flatten()
    parents = pc.list_parent_indices(lists).to_numpy()
    name_bytes = pc.find_substring(entries, _NAME_END)
    whole = pc.and_(
        pc.greater(name_bytes, 0), pc.less(pc.add(name_bytes, 1), pc.binary_length(entries))
    )
    if not pc.all(whole, min_count=0).as_py():
        entries = entries.filter(whole)
        parents = parents[whole.to_numpy(zero_copy_only=False)]
    halves = pc.split_pattern(entries, _NAME_END, max_splits=1).flatten()
    even = np.arange(0, len(halves), 2)
    return parents, halves.take(pa.array(even)), halves.take(pa.array(even + 1))


def _last_of_each(parents: np.ndarray, names: pa.Array, values: pa.Array) -> _Entries:
    """The entries without those that a later entry of the same message and name replaces."""
    coded = names.dictionary_encode()
    codes, kinds = coded.indices.to_numpy(), coded.dictionary
    if _are_single(parents, codes, len(kinds)):
        return _Entries(parents, names, values, codes, kinds)
    keys = parents.astype(np.int64) * max(1, len(kinds)) + codes
    _, from_behind = np.unique(keys[::-1], return_index=True)
    kept = np.sort(len(keys) - 1 - from_behind)
    places = pa.array(kept)
    return _Entries(parents[kept], names.take(places), values.take(places), codes[kept], kinds)


def _are_single(parents: np.ndarray, codes: np.ndarray, count: int) -> bool:
    """Whether no name comes twice in a message; `count` is the number of names."""
    if not len(parents):
        return True
    if count > _FEW_NAMES:
        keys = parents.astype(np.int64) * count + codes
        return len(pc.unique(pa.array(keys))) == len(keys)
    # A bit for each name: their sum is their union unless one is there twice.
    begins = np.flatnonzero(np.concatenate([[True], parents[1:] != parents[:-1]]))
    bits = np.int64(1) << codes.astype(np.int64)
    return bool((np.add.reduceat(bits, begins) == np.bitwise_or.reduceat(bits, begins)).all())


def property_matcher(condition: TypedExpression) -> Callable[[Properties], np.ndarray]:
    """A function that says, as bool[n], which of n messages fulfil a condition.

    The condition was checked before. Arrow finds the values of the properties that it names for
    all messages together; then the compiled filter is asked for each message.
    """
    compiled = compile_expression(condition)
    names, matches = compiled.names, compiled.matches

    def match(properties: Properties) -> np.ndarray:
        if not names:
            return np.full(len(properties.text), matches({}))
        columns = [properties.value(name).to_pylist() for name in names]
        rows = zip(*columns, strict=True)
        found = (matches(dict(zip(names, row, strict=True))) for row in rows)
        return np.fromiter(found, np.bool_, len(properties.text))

    return match
