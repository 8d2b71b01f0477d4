"""Bodies as columns, by Spark's own functions, and which of them are bad.

The function cannot read a bad body: its bytes are no UTF-8, no JSON object of the schema, no Avro
or Protobuf of it. No part of a bad body becomes a column: it stays as it is, in the column
`bad_body` or in a table of its own, and is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed
from aerobee.pipeline.jobs.stream.job_plan import DATE, PLACE, JobPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

BODY: Final = "body"
BAD_BODY: Final = "bad_body"
VALUE: Final = "value"
#: The column of a row on its way that says whether its body is bad. No table has it.
IS_BAD: Final = "_aerobee_bad"
_PARSED: Final = "_aerobee_parsed"
_CORRUPT: Final = "_aerobee_corrupt"
#: A field that every Avro body has which could be read.
_READ: Final = "_aerobee_read"
#: The column of a bad row on its way to a table of its own that holds the message.
_RAW: Final = "_aerobee_raw"
_REASONS: Final = {
    "text": "no UTF-8",
    "json": "no JSON object of the schema",
    "avro": "no Avro of the schema",
    "protobuf": "no Protobuf of the message",
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """`rows` have the table's columns, which `names` are, and what says which are bad."""

    rows: DataFrame
    names: tuple[str, ...]

    def good(self, batch: DataFrame) -> DataFrame:
        """The table's rows of a batch without bad bodies."""
        return batch.where(f"NOT {IS_BAD}").select(*self.names)

    def all(self, batch: DataFrame) -> DataFrame:
        """The table's rows of a batch."""
        return batch.select(*self.names)


def bad_rows(batch: DataFrame) -> DataFrame:
    """The bad bodies of a batch: which messages they are, as they are, and what they are not."""
    return batch.where(IS_BAD).select(f"{_RAW}.*")


def decoded(source: DataFrame, plan: JobPlan, schema: StructType | None) -> Decoded:
    """The rows of the source with their bodies read; `schema` is of JSON. Raises JobFailed for
    columns that do not go together."""
    from pyspark.sql import functions as f

    columns = {name: f.col(name) for name in plan.columns}
    if DATE in plan.table.partition_by and DATE not in columns:
        days = f.floor(f.unix_seconds("storeTimestamp") / 86_400)
        columns[DATE] = f.date_from_unix_date(days.cast("int"))
    rows, bad, fields = _read(source, plan, schema)
    if plan.body.keep:
        fields[BODY] = f.col(BODY)
    can_be_bad = plan.body.kind != "binary"
    if can_be_bad and plan.mode != "dropmalformed" and plan.bad_table is None:
        # In failfast it is always null: a stream that goes on with permissive has the column
        # already.
        fields[BAD_BODY] = f.when(f.col(IS_BAD), f.col(BODY))
    _check_names(columns, fields, plan)
    if can_be_bad and plan.mode == "failfast":
        bad = f.when(bad, f.raise_error(_failure(plan.body.kind))).otherwise(f.lit(False))
    rows = rows.withColumn(IS_BAD, bad)
    more = [] if plan.bad_table is None else [_raw(plan.body.kind)]
    chosen = [column.alias(name) for name, column in (columns | fields).items()]
    return Decoded(rows.select(*chosen, *more, IS_BAD), (*columns, *fields))


def json_schema(
    spark: SparkSession, plan: JobPlan, kept: StructType | None, source: DataFrame
) -> StructType:
    """The schema of JSON bodies: the one given, or the one kept, or one inferred from the first
    messages of `source`, a batch. Raises JobFailed."""
    from pyspark.sql.types import StructType

    given = plan.body.schema
    if given is None:
        return kept if kept is not None else _inferred(spark, plan, source)
    try:
        if given.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(given))
        return StructType.fromDDL(given)
    except Exception as error:
        cause = " ".join(str(error).split("\n\n")[0].split())[:300]
        raise JobFailed(
            f"--schema {given[:200]!r} is no DDL or Spark schema: {cause}", USAGE
        ) from (error)


def _inferred(spark: SparkSession, plan: JobPlan, source: DataFrame) -> StructType:
    from pyspark.sql.types import StructType

    most = plan.body.infer_from
    rows = source.selectExpr("cast(body AS string) AS text").limit(most).collect()
    texts = [row.text for row in rows if row.text.lstrip().startswith("{")]
    if texts:
        lines = spark.createDataFrame([(text,) for text in texts], "text string")
        reader = spark.read.options(**plan.body.options)
        found = reader.option("columnNameOfCorruptRecord", _CORRUPT).json(
            lines.rdd.map(lambda row: row.text)
        )
        fields = [one for one in found.schema.fields if one.name != _CORRUPT]
        if fields:
            return StructType(fields)
    raise JobFailed(
        f"{plan.what}: none of the first {len(rows)} messages is a JSON object with fields, so no "
        "schema can be inferred; give one with --schema, or start when there are messages"
    )


def _read(
    source: DataFrame, plan: JobPlan, schema: StructType | None
) -> tuple[DataFrame, Column, dict[str, Column]]:
    """The rows, which of them are bad, and the columns made of bodies: null where it is bad."""
    from pyspark.sql import functions as f

    kind = plan.body.kind
    if kind == "binary":
        return source, f.lit(False), {BODY: f.col(BODY)}
    if kind == "text":
        text = f.col(BODY).cast("string")
        return source, ~f.is_valid_utf8(text), {BODY: f.when(~f.col(IS_BAD), text)}
    rows = source.withColumn(_PARSED, _parser(plan, schema))
    parsed = f.col(_PARSED)
    found = rows.schema[_PARSED].dataType
    every = [one.name for one in getattr(found, "fields", [])]
    bad = parsed.isNull() | _is_bad(kind, parsed, every)
    good = f.when(~f.col(IS_BAD), parsed)
    names = [name for name in every if name not in (_CORRUPT, _READ)]
    if not names:
        return rows, bad, {VALUE: good}
    if plan.body.nested:
        whole = f.struct(*[parsed[name].alias(name) for name in names])
        return rows, bad, {VALUE: f.when(~f.col(IS_BAD), whole)}
    doubled = _doubled(names)
    if doubled:
        raise JobFailed(
            f"the schema has the field {doubled!r} twice, in one case or another, which no table "
            "can have; keep bodies in one column with --body text"
        )
    return rows, bad, {name: f.when(~f.col(IS_BAD), parsed[name]) for name in names}


def _is_bad(kind: str, parsed: Column, names: list[str]) -> Column:
    """The bodies that Spark's function could not read, besides those for which it gives null."""
    from pyspark.sql import functions as f

    if kind == "json":
        # Spark would put a mark for bytes that are no UTF-8, and say nothing.
        return parsed[_CORRUPT].isNotNull() | ~f.is_valid_utf8(f.col(BODY).cast("string"))
    if kind == "avro":
        # A good record may have nulls only; so this reads the field that is never null.
        return parsed[_READ].isNull() if _READ in names else f.lit(False)
    # All fields null, as in the empty message. If the bytes gave no field, they are no such
    # message.
    nothing = f.length(BODY) > 0
    for name in names:
        nothing = nothing & parsed[name].isNull()
    return nothing


def _readable_avro(schema: str) -> str:
    """The schema of a record with one more field, whose value stands in the schema itself."""
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise JobFailed(f"--schema is no Avro schema: {error}", USAGE) from error
    if not isinstance(found, dict) or found.get("type") != "record":
        return schema
    marker = {"name": _READ, "type": "boolean", "default": True}
    return json.dumps(found | {"fields": [*found.get("fields", []), marker]})


def _parser(plan: JobPlan, schema: StructType | None) -> Column:
    """The body read by Spark's function; null, or with a corrupt record, where it cannot be."""
    from pyspark.sql import functions as f

    body, options = plan.body, {**plan.body.options, "mode": "PERMISSIVE"}
    if body.kind == "json":
        from pyspark.sql.types import StructType

        assert schema is not None
        whole = StructType([*schema.fields]).add(_CORRUPT, "string")
        options["columnNameOfCorruptRecord"] = _CORRUPT
        return f.from_json(f.col(BODY).cast("string"), whole, options)
    assert body.schema is not None
    if body.kind == "avro":
        from pyspark.sql.avro.functions import from_avro

        options["avroSchema"] = _readable_avro(options.get("avroSchema", body.schema))
        return from_avro(BODY, body.schema, options)
    from pyspark.sql.protobuf.functions import from_protobuf

    assert body.message is not None
    return from_protobuf(BODY, body.message, body.schema, options)


def _doubled(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


def _check_names(columns: dict[str, Column], fields: dict[str, Column], plan: JobPlan) -> None:
    there = {name.lower() for name in columns}
    for name in fields:
        if name.lower() in there:
            raise JobFailed(
                f"bodies have a field {name!r}, which is a column of the message as well: leave "
                "that one out with --columns, or keep the fields in one column with --nested",
                USAGE,
            )
    every = [*columns, *fields]
    for name in plan.table.partition_by:
        if name not in every:
            raise JobFailed(f"--partition-by {name}: the columns are {', '.join(every)}", USAGE)
    if plan.table.format == "parquet" and "batch" in {name.lower() for name in every}:
        raise JobFailed(
            "a column 'batch' cannot be in a Parquet table, whose directories are batch=NUMBER: "
            "keep the fields in one column with --nested",
            USAGE,
        )


def _raw(kind: str) -> Column:
    from pyspark.sql import functions as f

    message = f.struct(*PLACE, "storeTimestamp", BODY, f.lit(_REASONS[kind]).alias("reason"))
    return f.when(f.col(IS_BAD), message).alias(_RAW)


def _failure(kind: str) -> Column:
    """The text of the error of a bad body, which names the message."""
    from pyspark.sql import functions as f

    return f.concat(
        f.lit("the body of message "), f.col("queueOffset"), f.lit(" of queue "), f.col("queueId"),
        f.lit(" of broker "), f.col("brokerName"), f.lit(" of topic "), f.col("topic"),
        f.lit(f" is {_REASONS[kind]} (mode failfast)"),
    )  # fmt: skip
