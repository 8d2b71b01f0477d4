"""The columns a message has as a row of a DataFrame, in Spark's and in Arrow's terms.

The first nine are those of RocketMQ's own Spark connector, names and order; what else a message
carries follows. `bodyCrc` and the columns of the log itself come only when they are asked for.
Times are UTC, to the microsecond as Spark has them, to the millisecond as the broker has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee.pipeline.errors import known_names

if TYPE_CHECKING:
    import pyarrow as pa


class Column(NamedTuple):
    """One column: its name, Spark's DDL type, and whether it is there without being asked for."""

    name: str
    type: str
    standard: bool = True


PROPERTIES: Final = "properties"
MAP_TYPE: Final = "map<string,string>"

TOPIC_COLUMNS: Final = (
    Column("topic", "string"),
    Column("flag", "int"),
    Column("body", "binary"),
    Column(PROPERTIES, MAP_TYPE),
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("bornTimestamp", "timestamp"),
    Column("storeTimestamp", "timestamp"),
    Column("msgId", "string"),
    Column("offsetMsgId", "string"),
    Column("keys", "string"),
    Column("tags", "string"),
    Column("reconsumeTimes", "int"),
    Column("sysFlag", "int"),
    Column("bornHost", "string"),
    Column("storeHost", "string"),
    Column("commitLogOffset", "bigint"),
    Column("bodyCrc", "int", standard=False),
)

#: What the reader of log files knows besides. It does not know the name of the broker.
STORE_COLUMNS: Final = (
    *(column for column in TOPIC_COLUMNS if column.name != "brokerName"),
    Column("recordSize", "int"),
    Column("preparedTransactionOffset", "bigint"),
    Column("originTopic", "string", standard=False),
    Column("error", "string"),
)


def choose(known: Sequence[Column], asked: Iterable[str] | None) -> tuple[Column, ...]:
    """The columns asked for, in the order asked; the standard ones without a wish.

    Names count without regard to case, as everywhere in Spark. Raises ValueError for a name that is
    none, with the nearest one that is, for one asked twice, and for an empty list.
    """
    if asked is None:
        return tuple(column for column in known if column.standard)
    by_name = {column.name.lower(): column for column in known}
    chosen: list[Column] = []
    for name in [one.strip() for one in asked]:
        column = by_name.get(name.lower())
        if column is None:
            hint = known_names(name, [one.name for one in known])
            raise ValueError(f"unknown column {name!r}{hint}")
        if column in chosen:
            raise ValueError(f"column {column.name!r} is asked for twice")
        chosen.append(column)
    if not chosen:
        raise ValueError("no column is asked for; leave the option out for all of them")
    return tuple(chosen)


def ddl(columns: Iterable[Column]) -> str:
    """The schema as Spark reads it."""
    return ", ".join([f"{column.name} {column.type}" for column in columns])


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The schema as Arrow batches must have it: Spark 4.3 compares each name, type and flag."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        MAP_TYPE: pa.map_(pa.field("key", pa.string(), nullable=False), pa.string()),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in columns])
