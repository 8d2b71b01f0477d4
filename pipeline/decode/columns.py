"""The columns a message has as a row of a DataFrame, in Spark's and in Arrow's terms.

The first nine are those of RocketMQ's own Spark connector, names and order. By default a read of
topics gives the columns that name a message (topic, broker, queue, offset), its body, keys, tags
and time: Spark does not tell a source in Python which columns a query needs, and each costs
(docs/decisions/0020-columns-by-name.md). What else a message carries comes when it is asked for;
files of a store give all of it by themselves. Times are UTC, to the microsecond as Spark has them,
to the millisecond as the broker has them.
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
KEYS: Final = "keys"
KEYS_TYPE: Final = "array<string>"
#: The user's properties as Kafka's source gives a record's headers.
HEADERS: Final = "headers"
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
#: In the place of names: every column there is.
ALL: Final = "*"

TOPIC_COLUMNS: Final = (
    Column("topic", "string"),
    Column("flag", "int", standard=False),
    Column("body", "binary"),
    Column(PROPERTIES, MAP_TYPE, standard=False),
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("bornTimestamp", "timestamp", standard=False),
    Column("storeTimestamp", "timestamp"),
    Column("msgId", "string", standard=False),
    Column("offsetMsgId", "string", standard=False),
    Column(KEYS, "string", standard=False),
    Column("tags", "string", standard=False),
    Column("reconsumeTimes", "int", standard=False),
    Column("sysFlag", "int", standard=False),
    Column("bornHost", "string", standard=False),
    Column("storeHost", "string", standard=False),
    Column("commitLogOffset", "bigint", standard=False),
    Column("bodyCrc", "int", standard=False),
    Column(HEADERS, HEADERS_TYPE, standard=False),
)
_ON_REQUEST: Final = frozenset({"bodyCrc", HEADERS})

#: The columns of the reader of log files, which does not know the name of the broker.
STORE_COLUMNS: Final = (
    *(
        column._replace(standard=column.name not in _ON_REQUEST)
        for column in TOPIC_COLUMNS
        if column.name != "brokerName"
    ),
    Column("recordSize", "int"),
    Column("preparedTransactionOffset", "bigint"),
    Column("originTopic", "string", standard=False),
    Column("error", "string"),
)


def choose(known: Sequence[Column], asked: Iterable[str] | None) -> tuple[Column, ...]:
    """The columns asked for, in the order asked; the standard ones without a wish, all for `*`.

    Names count without regard to case, as everywhere in Spark. Raises ValueError for an unknown
    name, with the nearest known name, for a name asked twice, and for an empty list.
    """
    if asked is None:
        return tuple(column for column in known if column.standard)
    asked = [one.strip() for one in asked]
    if asked == [ALL]:
        return tuple(known)
    by_name = {column.name.lower(): column for column in known}
    chosen: list[Column] = []
    for name in asked:
        column = by_name.get(name.lower())
        if column is None:
            hint = known_names(name, [one.name for one in known])
            raise ValueError(f"unknown column {name!r}{hint}")
        if column in chosen:
            raise ValueError(f"column {column.name!r} is asked for twice")
        chosen.append(column)
    if not chosen:
        raise ValueError(f"no column is asked for; {ALL} asks for all of them")
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
        KEYS_TYPE: pa.list_(pa.string()),
        HEADERS_TYPE: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        MAP_TYPE: pa.map_(pa.field("key", pa.string(), nullable=False), pa.string()),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in columns])
