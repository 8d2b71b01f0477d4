"""Options of the topic sink, typed and checked. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aerobee.pipeline.brokers.broker_options import (
    ACCESS_OPTIONS,
    Access,
    read_access,
    topic_options,
)
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.foreign_options import sink_word
from aerobee.pipeline.option_map import OptionMap
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import MAX_QUERY_CHARS, check_batch
from aerobee.protocol.names import check_group_name, check_topic_name

AUTO: Final = "auto"
EFFECTIVELY_ONCE: Final = "effectively-once"
AT_LEAST_ONCE: Final = "at-least-once"

#: Stored, but not known to be on the disk, or on a slave (protocol/WIRE.md 2.3).
UNSURE_CODES: Final = frozenset({10, 11, 12})
_ACCEPTED: Final = frozenset({11, 12})
SINK_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "producerGroup",
    "guarantee",
    "jobId",
    "batchBytes",
    "inFlight",
    "sendTimeoutMs",
    "retryTimeoutMs",
    "commitTimeoutMs",
    "acceptCodes",
)
# Spark's own of a stream's write, which it hands on to the sink.
_OF_SPARK: Final = ("checkpointLocation", "queryName")
_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_SEND_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write. Times are in ms, sizes in bytes."""

    access: Access
    topic: str | None = None
    producer_group: str = "spark-rocketmq"
    guarantee: str = AUTO
    job_id: str | None = None
    batch_bytes: int = 256 * _KIB
    in_flight: int = 8
    send_timeout_ms: int = _SEND_TIMEOUT_MS
    retry_timeout_ms: int = 60_000
    commit_timeout_ms: int = 600_000
    accept_codes: frozenset[int] = _ACCEPTED

    @property
    def name_servers(self) -> str:
        """The name servers as text, for clients and for people."""
        return ";".join(self.access.name_servers)

    def of_clients(self) -> dict[str, Any]:
        """The fields of ClientOptions that the options say: who asks, and over what."""
        names = ("access_key", "secret_key", "use_tls", "trust_store")
        found = {name: getattr(self.access.manner, name) for name in names}
        if (shown := self.access.manner.shown) is not None:
            found["certificate"], found["certificate_key"] = shown.path, shown.key_path
            found["certificate_password"] = shown.password
        return found


def read_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of one write. Raises OptionError for what cannot be."""
    options = topic_options(given, (*SINK_OPTIONS, *(_OF_SPARK if streaming else ())), sink_word)
    job_id = options.text("jobId")
    guarantee = options.choice("guarantee", (AUTO, EFFECTIVELY_ONCE, AT_LEAST_ONCE), AUTO)
    if job_id is not None:
        _check_job(options, job_id, guarantee, streaming=streaming)
    elif guarantee == EFFECTIVELY_ONCE and not streaming:
        raise OptionError(
            "option guarantee: effectively-once needs the option jobId in a batch write: by it a "
            "job that runs again is known to be the same"
        )
    send_timeout_ms = options.integer("sendTimeoutMs", _SEND_TIMEOUT_MS, 1) or 1
    access = read_access(options, send_timeout_ms / 1000)
    defaults = SinkOptions(access)
    return SinkOptions(
        access,
        topic=_name(options, "topic", check_topic_name),
        producer_group=_name(options, "producerGroup", check_group_name) or defaults.producer_group,
        guarantee=guarantee,
        job_id=job_id,
        batch_bytes=options.size("batchBytes", defaults.batch_bytes, _KIB, 16 * _MIB),
        in_flight=options.integer("inFlight", defaults.in_flight, 1, 1000) or 1,
        send_timeout_ms=send_timeout_ms,
        retry_timeout_ms=options.integer("retryTimeoutMs", defaults.retry_timeout_ms, 0) or 0,
        commit_timeout_ms=options.integer("commitTimeoutMs", defaults.commit_timeout_ms, 1) or 1,
        accept_codes=_accept_codes(options),
    )


def _check_job(options: OptionMap, job_id: str, guarantee: str, *, streaming: bool) -> None:
    if streaming:
        raise OptionError("option jobId is for batch writes: a stream has its query's own id")
    if guarantee == AT_LEAST_ONCE:
        raise OptionError("options jobId and guarantee=at-least-once contradict each other")
    try:
        check_batch(query_of_job(job_id), 0)
    except BadRequest:
        limit = MAX_QUERY_CHARS - len(query_of_job(""))
        raise options.wrong(
            "jobId", f"must be 1 to {limit} letters, digits or any of _.:-"
        ) from None


def query_of_job(job_id: str) -> str:
    """The id that a batch write has in the place of a query's."""
    return f"job.{job_id}"


def _name(options: OptionMap, name: str, check: object) -> str | None:
    text = options.text(name)
    if text is None:
        return None
    assert callable(check)
    try:
        return str(check(text.strip()))
    except BadRequest as error:
        raise OptionError(f"option {name}: {error.remark}") from None


def _accept_codes(options: OptionMap) -> frozenset[int]:
    names = options.names("acceptCodes")
    if names is None:
        return _ACCEPTED
    known = {str(code): code for code in UNSURE_CODES | {0}}
    for name in names:
        if name not in known:
            raise options.wrong("acceptCodes", "must be a list of 0, 10, 11 and 12")
    return frozenset(known[name] for name in names) - {0}
