"""What of a log is no message to be sent again, and why.

A log holds more than what producers sent: a delayed message lies in it twice, waiting in
SCHEDULE_TOPIC_XXXX and delivered; half messages become messages of their own or are given up; a
sink of ours stages its rows; a broker keeps notes in topics of its own. To send those would double
messages, or send what no consumer can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    STAGE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
)
from aerobee.store.inspect.filler import FILLER_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAGED: Final = "staging of a sink's rows"
WAITING: Final = "waiting copies of delayed messages"
TRANSACTIONS: Final = "transactions' own"
FILLERS: Final = "put in place of lost records"
BROKERS: Final = "notes of brokers and traces"
_TRANSACTION_TOPICS: Final = (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
_BROKER_TOPICS: Final = (SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, TRACE_TOPIC)
_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX.upper())


def left_out(topics: Sequence[str], where: str | None) -> Column:
    """Why a row is not sent again; null for a message.

    A topic that `topics` or the text of `where` name is meant, and sent; staging, half messages,
    rollbacks and fillers are never.
    """
    from pyspark.sql import functions as f

    topic = f.col("topic")
    is_named = topic.isin(list(topics)) | f.contains(f.lit(where or ""), topic)
    is_system = topic.startswith(_PREFIXES[0]) | topic.startswith(_PREFIXES[1])
    return (
        f.when(topic == STAGE_TOPIC, STAGED)
        .when(topic == FILLER_TOPIC, FILLERS)
        .when(f.col("sysFlag").bitwiseAND(SYS_TRANSACTION_PREPARED) != 0, TRANSACTIONS)
        .when(is_named, f.lit(None))
        .when(topic == SCHEDULE_TOPIC, WAITING)
        .when(topic.isin(*_TRANSACTION_TOPICS), TRANSACTIONS)
        .when(topic.isin(*_BROKER_TOPICS) | is_system, BROKERS)
    )


def still_waiting(waiting: DataFrame, rows: DataFrame) -> int:
    """How many of these waiting copies have no delivered copy behind them in `rows`.

    A delivered copy has the original's topic, unique key and time of birth; a message that waits
    again and again (retries) has one for each time, so each is looked for behind its own place.
    """
    from pyspark.sql import functions as f

    meant, unique = f.col("properties")["REAL_TOPIC"], f.col("properties")["UNIQ_KEY"]
    born, place = f.col("bornTimestamp"), f.col("commitLogOffset")
    one = waiting.select(
        meant.alias("topic1"), unique.alias("key1"), born.alias("born1"), place.alias("place1")
    )
    two = rows.select(
        f.col("topic").alias("topic2"),
        unique.alias("key2"),
        born.alias("born2"),
        place.alias("place2"),
    )
    is_delivered = (
        (f.col("topic1") == f.col("topic2"))
        & f.col("key1").eqNullSafe(f.col("key2"))
        & f.col("born1").eqNullSafe(f.col("born2"))
        & (f.col("place2") > f.col("place1"))
    )
    return int(one.join(two, is_delivered, "left_anti").count())
