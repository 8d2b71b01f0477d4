"""Maps columns of a DataFrame to parts of a message; refuses at planning columns that fit none.

Spark's types are looked at by their names, so that this needs no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aerobee.pipeline.decode.columns import HEADERS_TYPE, TOPIC_COLUMNS
from aerobee.pipeline.errors import known_names

_STRING: Final = ("string",)
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")

#: Column -> the types it may have. The order is that of `SinkColumns`.
SINK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": _STRING,
    "tags": _STRING,
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "delayTimeLevel": _WHOLE,
    "shardingKey": _STRING,
    "queueId": _WHOLE,
    "flag": _WHOLE,
    "headers": (HEADERS_TYPE,),
}
#: Kafka's words -> ours, where a column means the same.
_ALIASES: Final = {"partition": "queueId"}
_KAFKA: Final = {
    "value": "call it body",
    "key": "call it keys (words to find a message by), or shardingKey (it chooses the queue)",
}
_TIMER: Final = "deliverTimeMs"


class SinkSchemaError(ValueError):
    """A DataFrame whose columns cannot become messages."""


class Field(Protocol):
    """The part of Spark's StructField that is used here."""

    name: str

    @property
    def dataType(self) -> Any:
        """Its type, which has a `simpleString()`."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where in a row each part of a message stands; None for a part that the row lacks."""

    body: int
    topic: int | None = None
    tags: int | None = None
    keys: int | None = None
    properties: int | None = None
    delay_level: int | None = None
    sharding_key: int | None = None
    queue_id: int | None = None
    flag: int | None = None
    headers: int | None = None


def read_sink_schema(fields: Sequence[Field], topic: str | None) -> SinkColumns:
    """Raises SinkSchemaError for a column that is not in SINK_COLUMNS, has a type it cannot have,
    is there twice, or is missing; `topic` is the option of that name."""
    by_lower = {name.lower(): name for name in SINK_COLUMNS} | _ALIASES
    places: dict[str, int] = {}
    for place, field in enumerate(fields):
        name = by_lower.get(field.name.lower())
        if name is None:
            raise _unknown(field.name)
        if name in places:
            other = fields[places[name]].name
            again = "twice" if other == field.name else f"as {other} and as {field.name}"
            raise SinkSchemaError(f"column {name} is there {again}; leave one out")
        found = str(field.dataType.simpleString()).lower()
        if found not in SINK_COLUMNS[name]:
            raise SinkSchemaError(
                f"column {name} must be {' or '.join(SINK_COLUMNS[name])}, it is {found}"
            )
        places[name] = place
    if "body" not in places:
        raise SinkSchemaError("column body is missing: the message's content, binary or string")
    if topic is None and "topic" not in places:
        raise SinkSchemaError(
            "nothing says which topic the rows go to: give the option topic, or a column topic"
        )
    return SinkColumns(places["body"], *[places.get(name) for name in list(SINK_COLUMNS)[1:]])


def _unknown(name: str) -> SinkSchemaError:
    if name.lower() == _TIMER.lower():
        return SinkSchemaError(
            f"column {_TIMER} cannot be written: brokers of RocketMQ 4.9 know delay levels only; "
            "use the column delayTimeLevel"
        )
    if advice := _KAFKA.get(name.lower()):
        return SinkSchemaError(f"column {name!r} is Kafka's: {advice}")
    if name.lower() in {column.name.lower() for column in TOPIC_COLUMNS}:
        return SinkSchemaError(
            f"column {name!r} cannot be written: the broker gives it; leave it out with "
            f"select({', '.join(SINK_COLUMNS)}) or drop({name!r})"
        )
    return SinkSchemaError(f"unknown column {name!r}{known_names(name, SINK_COLUMNS)}")
