"""Requests of our clients and brokers about staged batches (WIRE.md, decision 10).

A task of a job sends its rows as a *stage*, in numbered *chunks*; the job's driver names the stages
that count in one *intent*; the broker then publishes them. A chunk carries rows for any number of
queues, grouped by queue:

    runs u16 · each run: topic length u8, topic · queue id i32 · rows i32 · bytes i32, batch body

where the batch body is that of SEND_BATCH_MESSAGE (`batch.py`). Rows count from 0 through a stage,
in the order of its chunks and of the runs in them.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.fields import Header, Int32, Int64
from aerobee.protocol.names import check_topic_name

#: Answered to STAGE_CAPABILITY; a client that finds another number does not stage.
STAGE_PROTOCOL = 1
MAX_QUERY_CHARS = 255
#: States of a batch at one broker.
NONE, OPEN, DONE = "none", "open", "done"

_QUERY = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)
_STAGE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_COUNT = struct.Struct(">H")
_RUN = struct.Struct(">iii")


class Run(NamedTuple):
    """Rows of a chunk that go to one queue, as a batch body."""

    topic: str
    queue_id: int
    rows: int
    body: bytes


class StagePart(msgspec.Struct, frozen=True):
    """One stage as an intent names it: where it lies, and what must be there of it."""

    broker: str
    partition: int
    stage: str
    chunks: int
    rows: int
    checksum: int


class StageCapability(Header):
    """The answer to STAGE_CAPABILITY; `delay` says whether rows may carry DELAY."""

    protocol: Int32
    broker_name: str
    max_chunk_bytes: Int32
    max_message_bytes: Int32
    expiry_ms: Int64
    delay: bool = False


class StageChunkHeader(Header):
    """STAGE_CHUNK; `crc` is the CRC-32 of the body."""

    query: str
    batch: Int64
    partition: Int32
    stage: str
    chunk: Int32
    rows: Int32
    crc: Int64


class StageBatchHeader(Header):
    """STAGE_INTENT, STAGE_STATUS, STAGE_ABORT; `wait_ms` is how long STATUS may wait for DONE.

    `first`: an INTENT is the first of its batch at any broker. What it names may be refused then
    for reasons that come too late once another broker has decided.
    """

    query: str
    batch: Int64
    wait_ms: Int64 = 0
    first: bool = False


class StageState(Header):
    """The answer to those three. The body holds the parts of the intent that counts.

    `state` is NONE, OPEN or DONE; `existed` whether the intent was there before this request;
    `published` of `rows` are in their queues.
    """

    state: str
    existed: bool = False
    published: Int64 = 0
    rows: Int64 = 0


def check_batch(query: str, batch: int) -> None:
    """Raises BadRequest (code 1) for a name that could not stand in a state file."""
    if len(query) > MAX_QUERY_CHARS or _QUERY.fullmatch(query) is None:
        raise BadRequest.system_error(
            f"the field query must be 1 to {MAX_QUERY_CHARS} characters of {_QUERY.pattern}"
        )
    if batch < 0:
        raise BadRequest.system_error("the field batch must not be negative")


def check_stage(stage: str) -> str:
    """The stage's name itself, or BadRequest (code 1)."""
    if _STAGE.fullmatch(stage) is None:
        raise BadRequest.system_error("the field stage must be 32 lower-case hexadecimal digits")
    return stage


def chunk_crc(body: bytes) -> int:
    """The checksum of one chunk."""
    return zlib.crc32(body)


def stage_checksum(crcs: Iterable[int]) -> int:
    """The checksum of a stage: that of its chunks' checksums, in order."""
    values = list(crcs)
    return zlib.crc32(struct.pack(f">{len(values)}I", *values))


def encode_chunk(runs: Sequence[Run]) -> bytes:
    """The body of a chunk."""
    parts = [_COUNT.pack(len(runs))]
    for topic, queue_id, rows, body in runs:
        name = topic.encode()
        parts += (bytes((len(name),)), name, _RUN.pack(queue_id, rows, len(body)), body)
    return b"".join(parts)


def decode_chunk(body: bytes) -> list[Run]:
    """The runs of a chunk; raises BadRequest (MESSAGE_ILLEGAL, or code 1 for a topic's name)."""
    return list(chunk_runs(body))


def chunk_runs(body: bytes) -> Iterator[Run]:
    """Yield the runs of a chunk (see `decode_chunk`). Raises in the middle where the rest is
    broken."""
    try:
        (count,) = _COUNT.unpack_from(body)
        position = _COUNT.size
        for number in range(count):
            start = position + 1
            position = start + body[position]
            topic = check_topic_name(body[start:position].decode("ascii", "replace"))
            queue_id, rows, size = _RUN.unpack_from(body, position)
            position += _RUN.size
            if size < 0 or rows <= 0 or position + size > len(body):
                raise _broken(number)
            yield Run(topic, queue_id, rows, body[position : position + size])
            position += size
    except (struct.error, IndexError):
        raise _broken(0) from None
    if not count or position != len(body):
        raise _broken(count)


def _broken(number: int) -> BadRequest:
    return BadRequest.illegal_message(f"run {number} of the chunk is broken")


def encode_parts(parts: Sequence[StagePart]) -> bytes:
    """A list of stages as the body of a request, an answer or a record."""
    return msgspec.json.encode(parts)


def decode_parts(body: bytes) -> list[StagePart]:
    """The opposite; raises BadRequest (code 1)."""
    try:
        parts = msgspec.json.decode(body, type=list[StagePart]) if body else []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest.system_error(f"the list of stages cannot be read: {error}") from error
    for part in parts:
        check_stage(part.stage)
        if min(part.chunks, part.rows, part.partition) < 0:
            raise BadRequest.system_error(f"stage {part.stage} has a negative count")
    return parts


def encode_names(stages: Sequence[str]) -> bytes:
    """Names of stages, for STAGE_ABORT."""
    return msgspec.json.encode(list(stages))


def decode_names(body: bytes) -> list[str]:
    """The opposite; raises BadRequest (code 1)."""
    try:
        names = msgspec.json.decode(body, type=list[str]) if body else []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest.system_error(f"the list of stages cannot be read: {error}") from error
    return [check_stage(name) for name in names]
