"""The tables of one broker as one value, which `core.py` makes and hands to all that read them."""

from __future__ import annotations

from typing import NamedTuple

from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.expressions import Expressions
from aerobee.broker.tables.filters import FilterTable
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.lag import ConsumerLag
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable


class Tables(NamedTuple):
    """The tables of one broker. Loop thread only, as each of them."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientTable
    #: How far consumers are behind, by the tables before.
    lag: ConsumerLag
    expressions: Expressions
    filters: FilterTable
