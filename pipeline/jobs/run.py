"""Runs one job from its arguments and gives its result; prints nothing but progress.

An error of the files, the options or Spark becomes a `JobFailed` with the text of the first cause:
a stack of Java frames says nothing about a damaged segment.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.errors import OptionError, PipelineError, sentence_in
from aerobee.pipeline.files.directory import find_stores
from aerobee.pipeline.foreign_options import missing_column
from aerobee.pipeline.jobs.checks import ParseTime, check
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import (
    COULD_NOT,
    DAMAGED,
    JobFailed,
    JobResult,
    key_values,
)
from aerobee.pipeline.jobs.common.spark_session import NEEDED, Progress, open_session, step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_CHARS: Final = 1000
_NO_JAVA: Final = "JAVA_GATEWAY_EXITED"

# The last line of a Python traceback.
_LAST_LINE: Final = re.compile(r"^([A-Za-z_][\w.]*: .+)$", re.MULTILINE)


def run_job(
    parsed: argparse.Namespace,
    parse_time: ParseTime,
    say: Callable[[str], None] | None = None,
    spark: SparkSession | None = None,
) -> JobResult:
    """Run the job that `parsed` (arguments.py) asks for. Raises JobFailed."""
    if parsed.job == "stream":
        from aerobee.pipeline.jobs.stream.stream_run import run_stream

        return run_stream(parsed, parse_time, _explained, say, spark)
    conf = key_values(parsed.conf, "--conf")
    _check(parsed, parse_time)
    own = spark is None
    try:
        if spark is None:
            spark = open_session(parsed.job, parsed.master, conf)
        with Progress(spark, None if parsed.quiet else say):
            result = _RUNNERS[parsed.job](spark, parsed, _store(parsed, parse_time))
            _check_topics(parsed, result)
            if parsed.output:
                step(spark, f"writing tables to {parsed.output}")
                _write(result, parsed.output)
        # Before the session ends, with which the frames would end.
        return result
    except JobFailed:
        raise
    except Exception as error:
        raise _explained(error, parsed.mode) from error
    finally:
        if own and spark is not None:
            spark.stop()


def _check(parsed: argparse.Namespace, parse_time: ParseTime) -> None:
    try:
        check(parsed, parse_time)
    except (PipelineError, OptionError, OSError) as error:
        raise JobFailed(str(error)) from error
    except ImportError as error:
        raise JobFailed(f"{NEEDED} ({error})") from error


def _check_topics(parsed: argparse.Namespace, result: JobResult) -> None:
    """Raises JobFailed when topics were asked for by name, and there is nothing of them."""
    names = ("records", "messages", "dead_letters")
    # An archive may be for topics that are to have messages; checks.py has looked at the names.
    if (
        parsed.job == "archive"
        or not getattr(parsed, "topic", None)
        or any(result.facts.get(name) for name in names)
    ):
        return
    asked = " or ".join(parsed.topic)
    known: list[str] = []
    if not getattr(parsed, "archive", False):
        known = sorted({topic for topic, _ in find_stores(parsed.directory)[0].queues()})
    hint = f"; the store has queues of {', '.join(known[:20])}" if known else ""
    selected = " at these times" if parsed.begin or parsed.end else ""
    raise JobFailed(f"there is no message of {asked}{selected} in {parsed.directory[0]}{hint}")


def _explained(error: Exception, mode: str) -> JobFailed:
    """The cause of an error as a text for people; a bug of ours is raised as it is."""
    from pyspark.errors import PySparkException

    if isinstance(error, PipelineError | OptionError | OSError):
        return JobFailed(str(error))
    if not isinstance(error, PySparkException) and "Py4J" not in type(error).__name__:
        raise error
    if _NO_JAVA in str(error):
        return JobFailed("Spark's Java process did not start; it needs Java 17 or newer")
    sentence = sentence_in(str(error)) or missing_column(str(error))
    if sentence is None:
        return JobFailed(f"Spark failed: {_first_cause(str(error))[:_MOST_CHARS]}")
    is_bad_record = mode == "failfast" and "(mode failfast)" in sentence
    return JobFailed(sentence, DAMAGED if is_bad_record else COULD_NOT)


def _first_cause(text: str) -> str:
    """The part of an error text of Spark before its state and frames; the last line of a Python
    traceback in it."""
    text = text.split("\n\tat ")[0].split(" SQLSTATE: ")[0]
    _, is_python, traceback = text.partition("Traceback (most recent call last):")
    causes = _LAST_LINE.findall(traceback) if is_python else []
    return " ".join((causes[-1] if causes else text).split())


def _store(parsed: argparse.Namespace, parse_time: ParseTime) -> StoreInput:
    options = {"splitBytes": str(parsed.split_bytes)} if parsed.split_bytes else {}
    selects = hasattr(parsed, "topic")
    return StoreInput(
        parsed.directory,
        parsed.mode,
        parsed.topic if selects else (),
        parse_time(parsed.begin) if selects and parsed.begin else None,
        parse_time(parsed.end) if selects and parsed.end else None,
        options,
    )


def _audit(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.audit import audit
    from aerobee.pipeline.jobs.derived.entries import DELAY_LEVELS

    levels = parsed.delay_levels or DELAY_LEVELS
    return audit(spark, store, delay_levels=levels)


def _rebuild(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.derived.entries import DELAY_LEVELS
    from aerobee.pipeline.jobs.rebuild import Sizes, rebuild

    default = Sizes()
    sizes = Sizes(
        parsed.queue_file_bytes or default.queue_file_bytes,
        parsed.index_slots or default.index_slots,
        parsed.index_entries or default.index_entries,
    )
    both = parsed.queues == parsed.index
    return rebuild(
        spark,
        store,
        parsed.to,
        queues=parsed.queues or both,
        index=parsed.index or both,
        sizes=sizes,
        delay_levels=parsed.delay_levels or DELAY_LEVELS,
    )


def _archive(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.archive import FILE_BYTES, RANGE_BYTES, archive, check

    if parsed.check:
        return check(parsed.to)
    return archive(
        spark,
        store,
        parsed.to,
        range_bytes=parsed.range_bytes or RANGE_BYTES,
        file_bytes=parsed.file_bytes or FILE_BYTES,
    )


def _replay(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.replay import replay

    source = parsed.directory[0] if parsed.archive else store
    sink = key_values(parsed.sink, "--sink")
    if parsed.job_id:
        sink["jobId"] = parsed.job_id
    return replay(
        spark,
        source,
        parsed.name_servers or os.environ.get("NAMESRV_ADDR", ""),
        topic=parsed.to,
        where=parsed.where,
        topics=parsed.topic,
        begin_ms=store.begin_ms,
        end_ms=store.end_ms,
        rate=parsed.rate,
        dry_run=parsed.dry_run,
        sink=sink,
    )


def _traffic(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.common.plots import write_plots
    from aerobee.pipeline.jobs.traffic import traffic

    result = traffic(spark, store)
    if parsed.plots:
        tables = {
            name: [row.asDict() for row in frame.collect()] for name, frame in result.frames.items()
        }
        pictures = not parsed.no_pictures
        result.facts["plots"] = write_plots(tables, result.lines, parsed.plots, pictures=pictures)
        what = "plots are in {}, all of them" if pictures else "tables are in {}"
        result.lines += ["", f"{what.format(parsed.plots)} in index.html"]
    return result


def _retention(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.retention import Policy, retention

    policies = [Policy(hours=hours) for hours in parsed.hours]
    policies += [Policy(size=size) for size in parsed.size]
    if not policies:
        policies = [Policy(hours=hours) for hours in (24.0, 48.0, 72.0, 168.0)]
    return retention(spark, store, policies)


def _dlq(spark: SparkSession, parsed: argparse.Namespace, store: StoreInput) -> JobResult:
    from aerobee.pipeline.jobs.dlq import dlq

    return dlq(spark, replace(store, topics=()), topics=parsed.topic, samples=parsed.samples)


_RUNNERS: Final[dict[str, Callable[..., JobResult]]] = {
    "audit": _audit,
    "rebuild": _rebuild,
    "archive": _archive,
    "replay": _replay,
    "traffic": _traffic,
    "retention": _retention,
    "dlq": _dlq,
}


def _write(result: JobResult, output: str) -> None:
    for name, frame in result.frames.items():
        frame.write.mode("overwrite").parquet(f"{output.rstrip('/')}/{name}")
    result.lines += ["", f"tables are in {output}: {', '.join(result.frames)}"]


def report_json(result: JobResult) -> dict[str, Any]:
    """A result for scripts."""
    return {"job": result.job, "code": result.code, **result.facts}
