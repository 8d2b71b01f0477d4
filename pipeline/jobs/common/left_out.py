"""Recognises records of a log that are no messages, and so are neither sent again nor archived.

A log holds more than what producers sent: a delayed message lies in it twice, waiting in
SCHEDULE_TOPIC_XXXX and delivered; half messages become messages of their own or are given up; a
sink of ours stages its rows; a broker keeps notes in topics of its own.

Sending these again would double messages, or send records that no consumer can read. An archive
keeps more of them: a message that waits, or whose transaction is open, may have no other copy yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aerobee.protocol.message.filler import FILLER_TOPIC
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SELF_TEST_TOPIC,
    STAGE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
    WAITING_TOPICS,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

STAGED: Final = "staging of a sink's rows"
WAITING: Final = "waiting copies of delayed messages"
TRANSACTIONS: Final = "transactions' own"
TRANSACTION_ENDS: Final = "notes of transactions' ends"
FILLERS: Final = "put in place of lost records"
BROKERS: Final = "notes of brokers and traces"
#: The reasons for which an archive leaves records out.
NOT_ARCHIVED: Final = (STAGED, FILLERS, TRANSACTION_ENDS, BROKERS)
#: Records of these topics are never messages.
NEVER_ARCHIVED: Final = (STAGE_TOPIC, FILLER_TOPIC)
_TRANSACTION_TOPICS: Final = (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
_BROKER_TOPICS: Final = (SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, TRACE_TOPIC)
_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX.upper())


def not_sent(topics: Sequence[str], where: str | None) -> Column:
    """Why a row is not sent again; null for a row that is sent.

    Rows of a topic that is in `topics`, or whose name is in the text of `where`, are sent, because
    somebody has asked for them. Staged rows, fillers, half messages and rollbacks never are.
    """
    from pyspark.sql import functions as f

    topic = f.col("topic")
    is_named = topic.isin(list(topics)) | f.contains(f.lit(where or ""), topic)
    return (
        f.when(topic == STAGE_TOPIC, STAGED)
        .when(topic == FILLER_TOPIC, FILLERS)
        .when(_is_prepared(), TRANSACTIONS)
        .when(is_named, f.lit(None))
        .when(topic.isin(*WAITING_TOPICS), WAITING)
        .when(topic.isin(*_TRANSACTION_TOPICS), TRANSACTIONS)
        .when(_is_of_brokers(), BROKERS)
    )


def not_archived(topics: Sequence[str]) -> Column:
    """Why a row is not archived (a word of NOT_ARCHIVED); null for a row that is archived.

    Rows of a topic in `topics` are archived, because somebody has asked for them; staged rows and
    fillers never are. Waiting copies are archived, and half messages, also those that a broker has
    given up asking about.
    """
    from pyspark.sql import functions as f

    topic = f.col("topic")
    is_kept = topic.isin(*WAITING_TOPICS, HALF_TOPIC, CHECK_MAX_TIME_TOPIC) | _is_prepared()
    return (
        f.when(topic == STAGE_TOPIC, STAGED)
        .when(topic == FILLER_TOPIC, FILLERS)
        .when(topic.isin(list(topics)) | is_kept, f.lit(None))
        .when(topic == OP_HALF_TOPIC, TRANSACTION_ENDS)
        .when(_is_of_brokers(), BROKERS)
    )


def _is_prepared() -> Column:
    from pyspark.sql import functions as f

    return f.col("sysFlag").bitwiseAND(SYS_TRANSACTION_PREPARED) != 0


def _is_of_brokers() -> Column:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    is_system = topic.startswith(_PREFIXES[0]) | topic.startswith(_PREFIXES[1])
    return topic.isin(*_BROKER_TOPICS) | is_system
