"""Plans a write: finds here, on the driver, what is wrong before any row is computed.

Options, columns, name servers, topic, and whether the brokers stage (`guarantee=auto` falls back to
at least once where they do not, and says so). The plan is pickled and goes to the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aerobee.client.errors import ClientError, NoNameServer, NoRoute
from aerobee.client.loop_thread import LoopThread
from aerobee.client.producing.staging import StageClient, StagingOptions
from aerobee.pipeline.errors import OptionError, no_name_server
from aerobee.pipeline.sink.schema import Field, SinkColumns, read_sink_schema
from aerobee.pipeline.sink.sink_options import (
    AT_LEAST_ONCE,
    EFFECTIVELY_ONCE,
    SinkOptions,
    query_of_job,
    read_sink_options,
)
from aerobee.protocol.headers.stages import DONE, NONE, StageCapability

log = logging.getLogger("aerobee.pipeline")

# Somebody waits for the plan, so a peer that does not answer within this is an error.
_PLAN_TIMEOUT_S: Final = 15.0
# A batch write is the first and only batch of its job.
_BATCH_OF_JOB: Final = 0


class SinkPlanError(RuntimeError):
    """The write cannot work as things are: nobody answers, no such topic, no staging."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """`staged`: what each broker can stage, None for at least once. `query` stands for a batch
    write's job, None for a stream, whose query is known to its tasks."""

    options: SinkOptions
    columns: SinkColumns
    brokers: tuple[str, ...]
    staged: dict[str, StageCapability] | None
    query: str | None


def plan_write(given: Mapping[str, str], fields: Sequence[Field], *, streaming: bool) -> SinkPlan:
    """Raises OptionError, SinkSchemaError, SinkPlanError."""
    options = read_sink_options(given, streaming=streaming)
    columns = read_sink_schema(fields, options.topic)
    wants = options.guarantee != AT_LEAST_ONCE and (streaming or options.job_id is not None)
    try:
        with connected(options, _PLAN_TIMEOUT_S) as (thread, client):
            return thread.run(_plan(client, options, columns, wants=wants))
    except NoRoute as error:
        hint = f". {_how_to_make(options.topic)}" if error.code is not None else ""
        raise SinkPlanError(f"topic {options.topic!r} cannot be written: {error}{hint}") from error
    except NoNameServer as error:
        raise SinkPlanError(no_name_server(options.name_servers, error.why)) from error
    except ClientError as error:
        raise SinkPlanError(f"the write cannot be planned: {error}") from error


async def _plan(
    client: StageClient, options: SinkOptions, columns: SinkColumns, *, wants: bool
) -> SinkPlan:
    brokers = await client.brokers(wait=True)
    if options.topic is not None:
        queues = await client.queues(options.topic)
        if not await client.knows(options.topic):
            log.warning(
                "topic %r is on no broker that the name servers know: the first message makes it, "
                "as brokers with autoCreateTopicEnable do. %s",
                options.topic,
                _how_to_make(options.topic),
            )
        brokers = sorted({queue.broker_name for queue in queues})
    if not brokers:
        raise SinkPlanError(f"no broker is registered at {options.name_servers}")
    # Asked whatever is wanted: a broker that is away or refuses the keys is found now.
    capabilities = {broker: await client.capability(broker) for broker in brokers}
    staged = _staged(capabilities, options) if wants else None
    query = None if options.job_id is None else query_of_job(options.job_id)
    return SinkPlan(options, columns, tuple(brokers), staged, query)


def _staged(
    capabilities: Mapping[str, StageCapability | None], options: SinkOptions
) -> dict[str, StageCapability] | None:
    """The staging of each broker; None, with a warning, if one of them cannot stage."""
    found = {broker: one for broker, one in capabilities.items() if one is not None}
    if len(found) == len(capabilities):
        return found
    unable = ", ".join(broker for broker, one in capabilities.items() if one is None)
    if options.guarantee == EFFECTIVELY_ONCE:
        raise OptionError(
            f"option guarantee: effectively-once is not possible, broker {unable} does not stage "
            "batches; at-least-once is"
        )
    log.warning("broker %s does not stage batches: messages are written at least once", unable)
    return None


def _how_to_make(topic: str | None) -> str:
    return f"If its name is not misspelt: aerobee topic create {topic}"


def staging_client(options: SinkOptions, retry_s: float | None = None) -> StageClient:
    """A client as the options want it; `retry_s` instead of retryTimeoutMs."""
    asked_s = options.retry_timeout_ms / 1000
    return StageClient(
        options.name_servers,
        StagingOptions(
            call_timeout_s=max(options.send_timeout_ms / 1000, 5.0),
            retry_s=asked_s if retry_s is None else min(asked_s, retry_s),
            commit_timeout_s=options.commit_timeout_ms / 1000,
            **options.of_clients(),
        ),
    )


@contextmanager
def connected(
    options: SinkOptions, retry_s: float | None = None
) -> Iterator[tuple[LoopThread, StageClient]]:
    """The process's loop thread, and a client on it; both are given back."""
    thread = LoopThread.acquire()
    try:
        client = staging_client(options, retry_s)
        thread.run(client.__aenter__())
        try:
            yield thread, client
        finally:
            thread.run(client.close())
    finally:
        thread.release()


def is_job_done(given: Mapping[str, str]) -> bool:
    """Whether a write with these options would send nothing, since its job id is done.

    False where that cannot be known: without a job id, with a broker that does not stage or is
    away, or while the batch is still being published; then the write itself reports what is wrong.
    """
    options = read_sink_options(given, streaming=False)
    if options.job_id is None:
        return False
    try:
        with connected(options, _PLAN_TIMEOUT_S) as (thread, client):
            return thread.run(_is_done(client, query_of_job(options.job_id)))
    except ClientError:
        return False


async def _is_done(client: StageClient, query: str) -> bool:
    states = []
    for broker in await client.brokers():
        if await client.capability(broker) is None:
            return False
        states.append((await client.status(broker, query, _BATCH_OF_JOB)).state)
    # Brokers that the batch does not concern know nothing of it.
    return DONE in states and set(states) <= {DONE, NONE}
