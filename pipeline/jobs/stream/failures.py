"""Makes one sentence of an error that ends a stream, with topic, table and remedy."""

from __future__ import annotations

import re
from typing import Final

from aerobee.pipeline.jobs.common.job_result import DAMAGED, JobFailed
from aerobee.pipeline.jobs.stream.job_plan import JobPlan

_BAD_BODY: Final = re.compile(r"(the body of message \S+ of queue .+? \(mode failfast\))")
_OTHER_RUN: Final = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE")
# Names of Delta's and Iceberg's errors when somebody else's commit does not go with ours.
_OTHER_WRITER: Final = re.compile(
    r"DELTA_CONCURRENT_\w+|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|MetadataChangedException"
    r"|ProtocolChangedException|CommitFailedException|ValidationException"
)
_NO_FIT: Final = re.compile(
    r"(\[(?:INCOMPATIBLE_DATA_FOR_TABLE|DELTA_FAILED_TO_MERGE_FIELDS|DELTA_SCHEMA_\w+)[^\n]*)"
    r"|(A schema mismatch detected[^\n]*)"
)
_REMEDY: Final = re.compile(r"\bwith (failOnDataLoss=\w+)")
_MOST_CHARS: Final = 600


def stream_failure(error: Exception, plan: JobPlan) -> JobFailed | None:
    """The sentence for an error of Spark that a stream may meet; None for any other."""
    text = str(error)
    route, table = plan.route, plan.table.place
    bad = _BAD_BODY.search(text)
    if bad is not None and plan.mode == "failfast":
        return JobFailed(
            f"{bad[1]}: nothing of its batch was written to {table}; run on with --mode permissive",
            DAMAGED,
        )
    if _OTHER_RUN.search(text):
        return JobFailed(
            f"two runs of the stream from {route} have the checkpoint {plan.checkpoint}; this one "
            "ends, the other goes on, and nothing is written twice"
        )
    if (other := _OTHER_WRITER.search(text)) is not None:
        return JobFailed(
            f"somebody else changed table {table} while a batch of {plan.what} was written "
            f"({other[0]}): nothing of the batch is there; start the stream again, and let others "
            "change columns or properties while it stands"
        )
    if (fit := _NO_FIT.search(text)) is not None:
        cause = " ".join((fit[1] or fit[2]).split())[:_MOST_CHARS]
        return JobFailed(
            f"{plan.what} no longer fits table {table}, whose columns somebody changed: {cause}; "
            "change them back, or name another --to and --checkpoint"
        )
    return None


def as_arguments(failure: JobFailed) -> JobFailed:
    """The failure, with options of the source written as arguments of this command."""
    return JobFailed(_REMEDY.sub(r"with --source \1", str(failure)), failure.code)
