"""Whether a job id was used before: the brokers know what they have decided for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aerobee.client.errors import ClientError
from aerobee.client.loop_thread import LoopThread
from aerobee.pipeline.sink.options import SinkOptions, query_of_job, read_sink_options
from aerobee.pipeline.sink.plan import staging_client
from aerobee.protocol.headers.stages import DONE, NONE

_PATIENCE_S: Final = 15.0
# A batch write is the first and only batch of its job.
_BATCH: Final = 0


def is_done(given: Mapping[str, str]) -> bool:
    """Whether a write with these options of the sink would send nothing, since its job id is done.

    False where that cannot be known: without a job id, with a broker that does not stage or is
    away, or while the batch is still being published; the write itself tells then what is wrong.
    """
    options = read_sink_options(given, streaming=False)
    if options.job_id is None:
        return False
    thread = LoopThread.acquire()
    try:
        return thread.run(_ask(options, query_of_job(options.job_id)))
    except ClientError:
        return False
    finally:
        thread.release()


async def _ask(options: SinkOptions, query: str) -> bool:
    states = []
    async with staging_client(options, _PATIENCE_S) as client:
        for broker in await client.brokers():
            if await client.capability(broker) is None:
                return False
            states.append((await client.status(broker, query, _BATCH)).state)
    # Brokers that the batch does not concern know nothing of it.
    return DONE in states and set(states) <= {DONE, NONE}
