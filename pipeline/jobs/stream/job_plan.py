"""The plan of one stream, as values that fit each other; read before Spark is started.

The options of the source are checked by the source's own rules. Nothing here knows Spark or asks a
broker. A place on this machine becomes an absolute path; another file system is named by its URI.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.arguments import ADD
from aerobee.pipeline.jobs.checks import ParseTime
from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed, key_values
from aerobee.pipeline.source.source_options import read_source_options
from aerobee.protocol.filters.property_filter import SQL_TYPE

#: A stream's own folder in a table's directory; readers pass over names that begin so.
OWN_FOLDER: Final = "_aerobee"
#: The columns that name the message of a row; always read, so that errors can name it.
PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
_COLUMNS: Final = (*PLACE, "storeTimestamp", "keys", "tags")
#: The column made of storeTimestamp when a table is to be partitioned by it.
DATE: Final = "date"
#: Options of the source that an argument of ours stands for.
_OURS: Final = {
    "nameserver": "-n", "rocketmq.namesrv.addr": "-n", "topic": "--topic", "subscribe": "--topic",
    "subscribepattern": "--pattern", "startingoffsets": "--from", "startingtimestamp": "--from",
    "subexpression": "--tags or --filter", "expressiontype": "--filter",
    "maxoffsetspertrigger": "--max-per-batch", "columns": "--columns",
}  # fmt: skip
_TABLE_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPlan:
    """How bodies become columns; `schema` is text: DDL, Avro's JSON, or a descriptor's path."""

    kind: str
    schema: str | None
    message: str | None
    infer_from: int
    options: Mapping[str, str]
    nested: bool
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table: a directory (`place` with a slash in it) or a name of a catalog's."""

    format: str
    place: str
    partition_by: tuple[str, ...] = ()
    files: int | None = None
    compact_every: int | None = None
    compact_bytes: int | None = None
    add_columns: bool = False
    existing: bool = False
    option: str = "--to"  # that named it

    @property
    def is_directory(self) -> bool:
        """Whether it is named by where it is."""
        return "/" in self.place

    @property
    def uri(self) -> str:
        """Its directory as Spark takes it."""
        assert self.is_directory
        return as_uri(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One stream: from where, what of it, to where, how. Times are seconds."""

    what: str  # for people: the topics
    topics: tuple[str, ...]
    pattern: str | None
    source: Mapping[str, str]  # options of the source; `columns` has all that is needed
    columns: tuple[str, ...]  # of the message, that the table has
    body: BodyPlan
    table: TablePlan
    bad_table: TablePlan | None
    mode: str
    checkpoint: str
    trigger_s: float
    available_now: bool
    report_s: float

    @property
    def route(self) -> str:
        """The stream's source and table, for errors."""
        return f"{self.what} to {self.table.place}"

    @property
    def has_own_checkpoint(self) -> bool:
        """Whether the checkpoint lies in the table's directory, and moves with it."""
        return self.table.is_directory and self.checkpoint.startswith(f"{self.table.place}/")


def read_plan(
    parsed: argparse.Namespace, parse_time: ParseTime, environ: Mapping[str, str] = os.environ
) -> JobPlan:
    """The plan that the arguments ask for. Raises JobFailed (usage) for what cannot be."""
    columns = _names("--columns", parsed.columns) or _COLUMNS
    table = TablePlan(
        format=parsed.format,
        place=_place("--to", parsed.to, parsed.format),
        partition_by=_names("--partition-by", parsed.partition_by),
        files=parsed.files,
        compact_every=parsed.compact_every,
        compact_bytes=parsed.compact_bytes,
        add_columns=parsed.schema_change == ADD,
        existing=parsed.existing,
    )
    _check_table(table)
    bad_table = _bad_table(parsed, table)
    if not (parsed.topic or parsed.pattern) or (parsed.topic and parsed.pattern):
        raise JobFailed("stream needs --topic (or --pattern, and not both)", USAGE)
    topics = tuple(sorted({one.strip() for text in parsed.topic for one in text.split(",")}))
    checkpoint = _checkpoint(parsed.checkpoint, table)
    source = _source(parsed, topics, checkpoint, parse_time, environ)
    needed = dict.fromkeys((*PLACE, *columns, "body", "storeTimestamp"))
    source["columns"] = ",".join(needed)
    _check_source(source)
    return JobPlan(
        what=f"topic {topics[0]}" if len(topics) == 1 else _several(topics, parsed.pattern),
        topics=topics,
        pattern=parsed.pattern,
        source=source,
        columns=columns,
        body=_body(parsed),
        table=table,
        bad_table=bad_table,
        mode=parsed.mode,
        checkpoint=checkpoint,
        trigger_s=parsed.trigger,
        available_now=parsed.available_now,
        report_s=parsed.report_every,
    )


def as_uri(place: str) -> str:
    """A place with the file system it is of: Spark's own default may be another."""
    return place if "://" in place else f"file://{place}"


def _several(topics: tuple[str, ...], pattern: str | None) -> str:
    return f"topics {', '.join(topics)}" if topics else f"topics like {pattern}"


def _names(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(one.strip() for one in text.split(","))
    if not all(names) or len({one.lower() for one in names}) != len(names):
        raise JobFailed(f"{option} {text}: must be names that differ, with commas", USAGE)
    return names


def _place(option: str, text: str, kind: str) -> str:
    if text.startswith("file:/"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        return text.rstrip("/")
    if "/" in text or kind == "parquet":
        return os.path.abspath(text)
    if not _TABLE_NAME.fullmatch(text):
        raise JobFailed(
            f"{option} {text}: must be the name of a table, or a directory with a / in it", USAGE
        )
    if kind == "iceberg" and text.count(".") < 2:
        raise JobFailed(
            f"{option} {text}: must name catalog, database and table, or be a directory (with a / "
            "in it)",
            USAGE,
        )
    return text


def _check_table(table: TablePlan) -> None:
    if table.format == "parquet":
        if table.compact_every or table.compact_bytes:
            raise JobFailed(
                "--compact-every and --compact-bytes are for delta and iceberg: nobody can change "
                "files of a plain Parquet directory in one act under its readers; larger batches "
                "(--trigger) and --files make larger files",
                USAGE,
            )
        if table.existing:
            raise JobFailed(
                "--existing is for delta and iceberg: a Parquet directory has one writer", USAGE
            )
    if table.compact_bytes and not table.compact_every:
        raise JobFailed("--compact-bytes needs --compact-every", USAGE)


def _bad_table(parsed: argparse.Namespace, table: TablePlan) -> TablePlan | None:
    if parsed.bad_to is None:
        return None
    if parsed.body == "binary":
        raise JobFailed("--bad-to: bodies that stay binary are never bad; see --body", USAGE)
    if parsed.mode != "permissive":
        raise JobFailed("--bad-to is for --mode permissive, in which bad bodies are kept", USAGE)
    place = _place("--bad-to", parsed.bad_to, parsed.format)
    inside = f"{place}/".startswith(f"{table.place}/") or f"{table.place}/".startswith(f"{place}/")
    if place == table.place or (table.is_directory and inside):
        raise JobFailed(f"--bad-to {parsed.bad_to}: must lie apart from --to", USAGE)
    return TablePlan(
        format=parsed.format, place=place, files=parsed.files, existing=parsed.existing,
        option="--bad-to",
    )  # fmt: skip


def _checkpoint(text: str | None, table: TablePlan) -> str:
    if text is not None:
        return _place("--checkpoint", text, "parquet")
    if not table.is_directory:
        raise JobFailed(f"--to {table.place}: a table by name needs a --checkpoint", USAGE)
    return f"{table.place}/{OWN_FOLDER}/checkpoint"


def _source(
    parsed: argparse.Namespace,
    topics: tuple[str, ...],
    checkpoint: str,
    parse_time: ParseTime,
    environ: Mapping[str, str],
) -> dict[str, str]:
    source = key_values(parsed.source, "--source")
    for name in source:
        if name.lower() in _OURS:
            raise JobFailed(f"--source {name}: say it with {_OURS[name.lower()]}", USAGE)
    servers = parsed.name_servers or environ.get("NAMESRV_ADDR", "")
    if not servers:
        raise JobFailed("stream needs --name-servers (or NAMESRV_ADDR)", USAGE)
    source["nameServer"] = servers
    source |= {"subscribe": ",".join(topics)} if topics else {"subscribePattern": parsed.pattern}
    moves = parsed.start != "earliest"
    if parsed.start in ("earliest", "latest"):
        source["startingOffsets"] = parsed.start
    else:
        source["startingTimestamp"] = str(parse_time(parsed.start))
    # A start that would differ after a crash has to be kept somewhere.
    kept = {"consumergroup", "startstatelocation"} & {name.lower() for name in source}
    if moves and not kept:
        if "://" in checkpoint:
            raise JobFailed(
                f"--from {parsed.start} needs --source consumerGroup=NAME, under which the broker "
                "keeps the start: a checkpoint that is no directory of this machine cannot",
                USAGE,
            )
        source["startStateLocation"] = f"{checkpoint}/aerobee/start"
    if parsed.tags and parsed.filter:
        raise JobFailed("--tags and --filter exclude each other; TAGS is a name of --filter", USAGE)
    if parsed.tags:
        source["subExpression"] = parsed.tags
    if parsed.filter:
        source |= {"expressionType": SQL_TYPE, "subExpression": parsed.filter}
    if parsed.max_per_batch:
        source["maxOffsetsPerTrigger"] = str(parsed.max_per_batch)
    return source


def _check_source(source: Mapping[str, str]) -> None:
    try:
        read_source_options(source, streaming=True)
    except OptionError as error:
        text = (
            str(error)
            .replace("option columns", "--columns")
            .replace("option subExpression", "--tags or --filter")
        )
        raise JobFailed(text, USAGE) from error


def _body(parsed: argparse.Namespace) -> BodyPlan:
    kind, schema = parsed.body, parsed.schema
    if kind in ("binary", "text"):
        for option in ("schema", "nested", "keep_body", "body_option"):
            if getattr(parsed, option):
                name = option.replace("_", "-")
                raise JobFailed(f"--{name} is for --body json, avro and protobuf", USAGE)
    if kind in ("avro", "protobuf") and not schema:
        file = "schema" if kind == "avro" else "descriptor set (protoc --descriptor_set_out)"
        raise JobFailed(f"--body {kind} needs --schema with the file of a {file}", USAGE)
    if (kind == "protobuf") != bool(parsed.message):
        raise JobFailed("--body protobuf and --message NAME belong together", USAGE)
    options = key_values(parsed.body_option, "--body-option")
    for name in options:
        if name.lower() in ("mode", "columnnameofcorruptrecord"):
            raise JobFailed(f"--body-option {name}: say it with --mode and --bad-to", USAGE)
    return BodyPlan(
        kind=kind,
        schema=_schema_text(kind, schema) if schema else None,
        message=parsed.message,
        infer_from=parsed.infer_from,
        options=options,
        nested=parsed.nested,
        keep=parsed.keep_body,
    )


def _schema_text(kind: str, given: str) -> str:
    """The text of a schema file, or DDL as it is given; for protobuf the path of the file."""
    if kind == "json" and not os.path.isfile(given):
        if "/" in given and not re.search(r"\s", given) and not given.startswith("{"):
            raise JobFailed(f"--schema {given}: there is no such file", USAGE)
        return given
    try:
        with open(given, "rb") as opened:
            data = opened.read()
        return os.path.abspath(given) if kind == "protobuf" else data.decode()
    except OSError as error:
        raise JobFailed(f"--schema {given}: {error.strerror}", USAGE) from error
    except UnicodeDecodeError as error:
        raise JobFailed(f"--schema {given}: is no text", USAGE) from error
