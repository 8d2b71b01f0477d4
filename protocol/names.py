"""Names of topics and groups, the only door by which one may become a path or a table key.

Every name from a client, an admin tool or another broker passes `check_topic_name` or
`check_group_name` before it is stored, so no name with a dot, a slash or a control character ever
reaches the file system, a log line or a metric (docs/reliability.md 8, class "name as path").
"""

import re

from aerobee.protocol.errors import BadRequest

MAX_TOPIC_CHARS = 127
MAX_GROUP_CHARS = 255

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
#: Ends the names of groups without consumers, in which a stream keeps where it began, each
#: offset one higher than meant, since a broker answers 0 for a group that it has nothing of.
START_GROUP_SUFFIX = "-start"

AUTO_CREATE_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: The group that the delay levels' progress counts as where groups are counted.
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: The group whose offsets in the half and the op queue are the progress of transaction checks.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: Ours: what jobs have staged and decided (docs/decisions/0010).
STAGE_TOPIC = "rmq_sys_aerobee_stage"
#: Ours: messages that wait for a time of their own (docs/decisions/0016).
TIMER_TOPIC = "rmq_sys_aerobee_timer"
#: Messages that wait for their time: entries hold delivery times in the place of tags codes.
WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
#: Those of ours, which no topic table knows.
OWN_TOPICS = frozenset({STAGE_TOPIC, TIMER_TOPIC})
#: Messages in these have not been delivered to anybody yet, or never will be.
UNDELIVERED_TOPICS = frozenset({HALF_TOPIC, OP_HALF_TOPIC, *OWN_TOPICS})
#: These, messages that wait for their time, and transactions that nobody has decided: messages of
#: all topics lie there, and name the topic that they are for.
HIDDEN_TOPICS = UNDELIVERED_TOPICS | WAITING_TOPICS | {CHECK_MAX_TIME_TOPIC}
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        *OWN_TOPICS,
    }
)
# Clients may pull from these but a send to them is answered with NO_PERMISSION (WIRE.md 3.1).
NO_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        *OWN_TOPICS,
    }
)
BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def check_topic_name(text: str | None) -> str:
    """The topic name itself, or BadRequest (code 1) with the rule it breaks."""
    return _check(text, "topic", MAX_TOPIC_CHARS)


def check_group_name(text: str | None) -> str:
    """The group name itself, or BadRequest (code 1) with the rule it breaks."""
    return _check(text, "group", MAX_GROUP_CHARS)


def check_subscribed_topic(text: str) -> str:
    """Check a topic that a consumer names (see `check_topic_name`).

    A group of a long name has no retry topic and no dead letters, and its clients name them anyway:
    Java's subscribe to the retry topic by themselves. Nothing is stored under such a name.
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if text.startswith(prefix) and is_valid_group_name(text.removeprefix(prefix)):
            return text
    return check_topic_name(text)


def why_no_group_topic(topic: str) -> str | None:
    """Why a group has no such `topic`, its retry topic or that of its dead letters; None when it
    may have it. The two limits of a name: a group's is longer than a topic's."""
    for prefix, kind in ((RETRY_PREFIX, "retry"), (DLQ_PREFIX, "dead letter")):
        if topic.startswith(prefix) and len(topic) > MAX_TOPIC_CHARS:
            return (
                f"the {kind} topic of the group would have {len(topic)} characters, the limit of "
                f"a topic is {MAX_TOPIC_CHARS}: give the group a name of at most "
                f"{MAX_TOPIC_CHARS - len(prefix)}"
            )
    return None


def check_group_topic(topic: str) -> str:
    """The name of a group's retry topic, or that of its dead letters; `BadRequest` (code 1) when
    the group's name is too long to have one, or is illegal."""
    if (why := why_no_group_topic(topic)) is not None:
        raise BadRequest.system_error(why)
    return check_topic_name(topic)


def _check(text: str | None, kind: str, limit: int) -> str:
    if text is None or not text.strip():
        raise BadRequest.system_error(f"the specified {kind} is blank")
    if len(text) > limit:
        raise BadRequest.system_error(
            f"the specified {kind} has {len(text)} characters, the limit is {limit}"
        )
    if _NAME.fullmatch(text) is None:
        raise BadRequest.system_error(
            f"the specified {kind} contains characters other than {_NAME.pattern}"
        )
    return text


def is_valid_topic_name(text: str) -> bool:
    """Whether `check_topic_name` would accept the text."""
    return len(text) <= MAX_TOPIC_CHARS and _NAME.fullmatch(text) is not None


def is_valid_group_name(text: str) -> bool:
    """Whether `check_group_name` would accept the text."""
    return len(text) <= MAX_GROUP_CHARS and _NAME.fullmatch(text) is not None


def is_system_topic(topic: str) -> bool:
    """Topics that admin tools may not create, change or delete."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether a group is one of RocketMQ's own tools and parts, which need no configuration."""
    return name.startswith(SYSTEM_GROUP_PREFIX) or name in BUILT_IN_GROUPS


def retry_topic(group: str) -> str:
    """The topic that a group's failed messages return in."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of a group's messages that failed for good."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Whether the topic is some group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_light(name: str) -> bool:
    """Whether that is the name of a light queue, or of a group that reads such."""
    return name.startswith(LMQ_PREFIX)
