"""The properties of many messages at once, in Arrow.

Rules as in `protocol/properties.py`: entries end with U+0002, names with U+0001; an entry without a
name or a value is none; of a repeated name the last one counts.
"""

from __future__ import annotations

import json
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.protocol.properties import SYSTEM_PROPERTIES

_ENTRY_END, _NAME_END = "\x02", "\x01"
_SYSTEM = pa.array(sorted(SYSTEM_PROPERTIES), pa.string())


class Properties:
    """The properties of `len(text)` messages; `text` is a string array without nulls."""

    def __init__(self, text: pa.Array) -> None:
        self.text = text

    def as_map(self, *, system: bool = True) -> pa.Array:
        """map<string, string> for each message; with or without SYSTEM_PROPERTIES."""
        parents, names, values = self._entries
        if not system:
            own = pc.invert(pc.is_in(names, value_set=_SYSTEM))
            parents = parents[own.to_numpy(zero_copy_only=False)]
            names, values = names.filter(own), values.filter(own)
        offsets = np.zeros(len(self.text) + 1, np.int32)
        np.cumsum(np.bincount(parents, minlength=len(self.text)), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

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
        """The value of the first of these names that a message has; null where it has none."""
        parents, names, values = self._entries
        found = np.full(len(self.text), -1, np.int64)
        for name in reversed(alternatives):
            places = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
            found[parents[places]] = places
        return values.take(pa.array(found, mask=found < 0))

    @cached_property
    def _entries(self) -> tuple[np.ndarray, pa.Array, pa.Array]:
        """The message each entry belongs to, the entries' names and their values."""
        lists = pc.split_pattern(self.text, _ENTRY_END)
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
        return _last_of_each(parents, halves.take(pa.array(even)), halves.take(pa.array(even + 1)))


def _last_of_each(
    parents: np.ndarray, names: pa.Array, values: pa.Array
) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Without the entries that a later one of the same message and name replaces."""
    coded = names.dictionary_encode()
    keys = parents.astype(np.int64) * max(1, len(coded.dictionary)) + coded.indices.to_numpy()
    if len(pc.unique(pa.array(keys))) == len(keys):
        return parents, names, values
    _, from_behind = np.unique(keys[::-1], return_index=True)
    kept = np.sort(len(keys) - 1 - from_behind)
    return parents[kept], names.take(pa.array(kept)), values.take(pa.array(kept))
