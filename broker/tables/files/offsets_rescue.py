"""Rescues the offsets that can still be read in damaged files of consumer offsets.

A start that loses all offsets sends each group back, or past messages that it has not seen. But an
entry is a line or two, and most of them are whole where a file was cut or a page of it was lost. So
entries are looked for singly, in the newer file first, and a damaged entry is passed over. Nothing
guards the digits, here as little as in a file that can be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aerobee.broker.tables.files.offsets_text import Pair, parse_key

# Names of topics and groups have these characters alone (protocol/names.py).
_KEY = rb'"([%|\w-]{1,127}@[%|\w-]{1,255})"\s*+:\s*+'
_QUEUES = re.compile(_KEY + rb'\{((?:\s*+"?[0-9]{1,10}"?\s*+:\s*+[0-9]{1,18}\s*+,?)*+)\s*+\}')
_LIGHT = re.compile(_KEY + rb"([0-9]{1,18})\s*+[,}]")
_ONE = re.compile(rb'"?([0-9]+)"?\s*+:\s*+([0-9]+)')


def rescued_offsets(contents: Sequence[bytes]) -> dict[Pair, dict[int, int]]:
    """Offsets by (topic, group) and queue id in what is left of these files, newer one first."""
    table: dict[Pair, dict[int, int]] = {}
    for content in contents:
        for key, queues in _QUEUES.findall(content):
            found = {int(queue): int(offset) for queue, offset in _ONE.findall(queues)}
            table.setdefault(parse_key(key.decode()), found)
    return table


def rescued_light_offsets(contents: Sequence[bytes]) -> dict[Pair, int]:
    """Rescue the offsets of light groups, by (topic, group)."""
    table: dict[Pair, int] = {}
    for content in contents:
        for key, offset in _LIGHT.findall(content):
            table.setdefault(parse_key(key.decode()), int(offset))
    return table
