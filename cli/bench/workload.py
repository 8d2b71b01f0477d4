"""Workload files of the OpenMessaging Benchmark: what each of their keys means here.

They are YAML, and all of them are flat: lines `key: value`, and comments. Only these are read here,
line by line; for any other line the error names its number. So no YAML library is needed, which
could make objects out of a stranger's file.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.nearest_name import nearest_name

_LINE: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*:(?:\s+(.*))?")
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]*")
_ESCAPES: Final = {"\\": "\\", '"': '"', "/": "/", "n": "\n", "t": "\t"}
_TOPICS_MAX: Final = 10_000
_EACH_MAX: Final = 10_000
_MINUTES_MAX: Final = 7 * 24 * 60
_BODY_MAX: Final = 4 * 1024 * 1024
_RATE_MAX: Final = 10_000_000
#: Those of the benchmark's key distributors that RocketMQ can serve.
DISTRIBUTORS: Final = ("NO_KEY", "KEY_ROUND_ROBIN", "RANDOM_NANO")
# Keys of other versions of the benchmark. Each would change the measurement, so a file with such a
# key is refused; the key is not passed over.
_OF_OTHERS: Final = frozenset(
    {
        *("producerStartRate", "acceptableBacklog", "producerIncrementRate"),
        *("producerIncrementSeconds", "producerPauseBeforeDrain", "producerPauseDuringDrain"),
        *("messageRateReceivedForSubscription", "partitionsPerTopicList", "producersPerTopicList"),
        *("producerRateList", "randomTopicNames", "logIntervalMillis"),
    }
)


class WorkloadError(ValueError):
    """The file is no workload that can be run; the text says where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload, checked. `producer_rate` is messages a second of all producers together; 0: as
    fast as answers come. `payload_file` is the path of an existing file, or ""."""

    name: str
    topics: int
    partitions_per_topic: int
    message_size: int
    subscriptions_per_topic: int
    consumer_per_subscription: int
    producers_per_topic: int
    producer_rate: int
    test_duration_minutes: int
    warmup_duration_minutes: int = 1
    consumer_backlog_size_gb: int = 0
    backlog_drain_ratio: float = 1.0
    key_distributor: str = "NO_KEY"
    payload_file: str = ""
    use_randomized_payloads: bool = False
    random_bytes_ratio: float = 0.0
    randomized_payload_pool_size: int = 0


def read_workload(path: Path) -> Workload:
    """The workload in a file. Raises WorkloadError, which names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path} is no workload file: it is not UTF-8 text") from error
    try:
        workload = parse_workload(text, path.stem)
        return _with_payload(workload, path.parent)
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from None


def parse_workload(text: str, name: str) -> Workload:
    """The workload that a text describes; `name` is for a workload without a name."""
    given = _pairs(text)
    values: dict[str, object] = {}
    for key, (line, written) in given.items():
        known = _KEYS.get(key)
        if known is None:
            raise WorkloadError(_unknown(line, key))
        try:
            values[known.attribute] = known.read(written)
        except ValueError as error:
            raise WorkloadError(f"line {line}: {key} {error}, not {written!r}") from None
    missing = [key for key, known in _KEYS.items() if known.required and key not in given]
    if missing:
        raise WorkloadError(f"it lacks {', '.join(missing)}: a workload says how much of each")
    workload = Workload(**{"name": name, **values})  # type: ignore[arg-type]
    _check(workload)
    return workload


def _pairs(text: str) -> dict[str, tuple[int, str]]:
    """The line number and the value of each key; values are without quotes and comments."""
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.rstrip() == "---":
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise WorkloadError(
                f"line {number} is no `key: value`: workload files are flat, without lists and "
                f"indented parts: {line.strip()[:60]!r}"
            )
        key = match[1]
        if key in found:
            raise WorkloadError(f"line {number}: {key} stands in line {found[key][0]} already")
        found[key] = (number, _scalar(number, match[2] or ""))
    return found


def _scalar(line: int, text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"'):
        quote = text[0]
        end = _closing_quote(text, quote)
        rest = text[end + 1 :].strip() if end else ""
        if not end or (rest and not rest.startswith("#")):
            raise WorkloadError(f"line {line}: the quoted value does not end: {text[:60]!r}")
        inner = text[1:end]
        if quote == "'":
            return inner.replace("''", "'")
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), inner)
    text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if text[:1] in ("[", "{", "&", "*", "!", "|", ">", "%", "@", "`"):
        raise WorkloadError(f"line {line}: the value must be a plain number or text: {text[:60]!r}")
    return text


def _closing_quote(text: str, quote: str) -> int:
    """The position of the closing quote; 0 if there is no closing quote."""
    position = 1
    while position < len(text):
        if quote == '"' and text[position] == "\\":
            position += 2
        elif text[position] == quote:
            if quote == "'" and text[position + 1 : position + 2] == "'":
                position += 2
                continue
            return position
        else:
            position += 1
    return 0


def _unknown(line: int, key: str) -> str:
    if key in _OF_OTHERS:
        return (
            f"line {line}: {key} belongs to another version of the benchmark and is not supported "
            "here: leave it out"
        )
    near = nearest_name(key, _KEYS)
    return f"line {line}: there is no key {key}" + (f"; did you mean {near}?" if near else "")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return read


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return value


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _distributor(text: str) -> str:
    if text not in DISTRIBUTORS:
        raise ValueError(f"must be {', '.join(DISTRIBUTORS[:-1])} or {DISTRIBUTORS[-1]}")
    return text


class _Key(NamedTuple):
    attribute: str
    read: Callable[[str], object]
    required: bool = False


_KEYS: Final[Mapping[str, _Key]] = {
    "name": _Key("name", str),
    "topics": _Key("topics", _whole(1, _TOPICS_MAX), required=True),
    "partitionsPerTopic": _Key("partitions_per_topic", _whole(1, _EACH_MAX), required=True),
    "messageSize": _Key("message_size", _whole(1, _BODY_MAX), required=True),
    "payloadFile": _Key("payload_file", str),
    "useRandomizedPayloads": _Key("use_randomized_payloads", _yes_or_no),
    "randomBytesRatio": _Key("random_bytes_ratio", _ratio),
    "randomizedPayloadPoolSize": _Key("randomized_payload_pool_size", _whole(0, 1_000_000)),
    "keyDistributor": _Key("key_distributor", _distributor),
    "subscriptionsPerTopic": _Key("subscriptions_per_topic", _whole(0, 1000), required=True),
    "consumerPerSubscription": _Key(
        "consumer_per_subscription", _whole(0, _EACH_MAX), required=True
    ),
    "producersPerTopic": _Key("producers_per_topic", _whole(1, _EACH_MAX), required=True),
    "producerRate": _Key("producer_rate", _whole(0, _RATE_MAX), required=True),
    "consumerBacklogSizeGB": _Key("consumer_backlog_size_gb", _whole(0, 100_000)),
    "backlogDrainRatio": _Key("backlog_drain_ratio", _ratio),
    "testDurationMinutes": _Key("test_duration_minutes", _whole(1, _MINUTES_MAX), required=True),
    "warmupDurationMinutes": _Key("warmup_duration_minutes", _whole(0, _MINUTES_MAX)),
}


def _check(workload: Workload) -> None:
    """Refuse keys that contradict each other."""
    if workload.subscriptions_per_topic and not workload.consumer_per_subscription:
        raise WorkloadError(
            "subscriptionsPerTopic wants consumers: consumerPerSubscription must be at least 1"
        )
    if workload.consumer_backlog_size_gb and not workload.subscriptions_per_topic:
        raise WorkloadError(
            "consumerBacklogSizeGB needs somebody to drain it: subscriptionsPerTopic is 0"
        )
    if workload.consumer_backlog_size_gb and not workload.producer_rate:
        raise WorkloadError("consumerBacklogSizeGB needs a producerRate above 0")
    if workload.use_randomized_payloads:
        pool = workload.randomized_payload_pool_size
        if not pool:
            raise WorkloadError(
                "useRandomizedPayloads needs a randomizedPayloadPoolSize of at least 1"
            )
        if pool * workload.message_size > 1 << 30:
            raise WorkloadError(
                "randomizedPayloadPoolSize times messageSize is more than 1 GiB in each process: "
                "make one of them smaller"
            )


def _with_payload(workload: Workload, folder: Path) -> Workload:
    """The workload with the path of its payload file. The file is looked for from the working
    directory, in the workload's folder, and in the folder above, where the benchmark's own
    workloads have theirs."""
    name = workload.payload_file
    if not name or workload.use_randomized_payloads:
        return replace(workload, payload_file="")
    for path in (Path(name), folder / name, folder.parent / name):
        if path.is_file():
            break
    else:
        raise WorkloadError(
            f"its payloadFile {name} is not there: not in the working directory, not in {folder}, "
            "and not in the folder above that"
        )
    size = path.stat().st_size
    if size != workload.message_size:
        raise WorkloadError(
            f"payloadFile {path} has {size} bytes and messageSize is {workload.message_size}: "
            "they must be the same"
        )
    return replace(workload, payload_file=str(path))
