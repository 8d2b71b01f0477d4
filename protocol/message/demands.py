"""The table of all that a message may ask for besides being stored, and of where it may.

A message asks by a property, by bits of its sysFlag, or by the prefix of its topic's name. The
verdict depends on its carrier, the way in which it comes to the broker. There are four verdicts:

    granted   the broker carries it out
    kept      it is stored as it came, and nobody acts on it
    dropped   it is taken out: only the broker may say it
    refused   the message is refused, with this text (MESSAGE_ILLEGAL)

A message that asks for anything in this table is not plain: the compiled form hands it back.
`broker/messages/stored_properties.py` judges sends and replies by this table,
`broker/staging/rows.py` staged rows, and the compiled form gets the names and bits
(`broker/messages/compiled_requests.py`). A granted demand is carried out at the place that its row
names. `WAIT` is not here: it asks for a later answer, not for another delivery.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.properties import (
    OF_ONE_RECORD,
    PROPERTY_CHECK_TIMES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_PREPARED_QUEUE_OFFSET,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DEL_UNIQUE_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    TIMER_PROPERTIES,
)
from aerobee.protocol.message.record_layout import (
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
)
from aerobee.protocol.names import RETRY_PREFIX

_NUMBER = re.compile(r"[+-]?\d{1,20}")


class Carrier(IntEnum):
    """How a message comes to the broker; each has a column of the table."""

    #: A send of one message.
    SINGLE = 0
    #: A send of one message to a group's retry topic.
    RETRY = 1
    #: A send of one message that asks for a transaction.
    HALF = 2
    #: A batch's demands for all its messages.
    BATCH = 3
    #: A message of a batch.
    IN_BATCH = 4
    #: A row of a staged batch.
    ROW = 5
    #: A reply, which is stored for the record only.
    REPLY = 6


class Verdict(NamedTuple):
    """The verdict on a demand; `why` is the text of a refusal."""

    word: str
    why: str = ""


GRANTED: Final = Verdict("granted")
KEPT: Final = Verdict("kept")
DROPPED: Final = Verdict("dropped")


def refused(why: str) -> Verdict:
    """The verdict that refuses a message with this text."""
    return Verdict("refused", why)


def _always(_value: str) -> bool:
    return True


def _is_true(value: str) -> bool:
    return value.lower() == "true"


def _is_a_level(value: str) -> bool:
    """Whether a DELAY asks for a level. As in the reference, a sign is no fault and 32 bits are the
    most. Raises BadRequest for a text that is no number."""
    # int() alone would take blanks and underscores too.
    if _NUMBER.fullmatch(value) and -1 << 31 <= int(value) < 1 << 31:
        return int(value) > 0
    shown = value if len(value) <= 64 else value[:64] + "..."
    raise BadRequest.system_error(
        f"the property {PROPERTY_DELAY} must be a delay level, a number, got {shown!r}"
    )


@dataclass(frozen=True, eq=False)
class Demand:
    """A demand that messages make. `verdicts` are in the order of `Carrier`."""

    what: str
    #: The place where it is carried out, if it is.
    where: str
    verdicts: tuple[Verdict, ...]
    #: The properties that ask for it. Of two values the last one counts, and `asks` judges it.
    names: tuple[str, ...] = ()
    asks: Callable[[str], bool] = _always
    #: The bits of a sysFlag that ask for it.
    flags: int = 0
    #: The prefix of topic names that ask for it.
    prefix: str = ""


_IN_A_BATCH = refused("a batch cannot carry a delay level or be transactional")
_TIME_IN_A_BATCH = refused(
    "timer message illegal: a batch cannot carry a delivery time (TIMER_DELIVER_MS, "
    "TIMER_DELAY_SEC, TIMER_DELAY_MS, __STARTDELIVERTIME); send its messages one by one"
)
_LEVEL_OF_A_HALF = refused(
    "a transactional message cannot have a delay level: take the property DELAY out"
)
_TIME_OF_A_HALF = refused(
    "a transactional message cannot have a time of its own: take the properties "
    f"{', '.join(TIMER_PROPERTIES)} out"
)
_TIME_OF_A_ROW = refused(
    "a staged row cannot have a delivery time (TIMER_DELIVER_MS and the like); use a delay level, "
    "or send it without staging"
)
_HALF_IN_A_ROW = refused("a staged row cannot be transactional")
_RETRY_IN_A_BATCH = refused("batch request does not support retry topics")
# NO_PERMISSION, like other topics that take no sends.
_RETRY_IN_A_ROW = refused("Sending message to topic[{}] is forbidden.")
_YES, _NO, _OWN = GRANTED, KEPT, DROPPED

# The verdicts:     single, retry, half, batch, in a batch, row, reply.
TRANSACTION: Final = Demand(
    "a transaction",
    "broker/transactions",
    # In a retry it is a remain of the message that was consumed: clients before 4.6.1.
    (_YES, _NO, _YES, _IN_A_BATCH, _NO, _HALF_IN_A_ROW, _NO),
    (PROPERTY_TRANSACTION_PREPARED,),
    _is_true,
)
TRANSACTION_STATE: Final = Demand(
    "to count as prepared, committed or rolled back",
    "store/dispatch",
    (_YES, _YES, _OWN, _IN_A_BATCH, _NO, _NO, _YES),
    flags=SYS_TRANSACTION_MASK,
)
DELAY_LEVEL: Final = Demand(
    "a delay level",
    "broker/delay/delay_service.py",
    (_YES, _YES, _LEVEL_OF_A_HALF, _IN_A_BATCH, _NO, _YES, _NO),
    (PROPERTY_DELAY,),
    _is_a_level,
)
DELIVERY_TIME: Final = Demand(
    "a time of delivery",
    "broker/delay/timer.py",
    (_YES, _YES, _TIME_OF_A_HALF, _TIME_IN_A_BATCH, _TIME_IN_A_BATCH, _TIME_OF_A_ROW, _NO),
    TIMER_PROPERTIES,
)
RECALL: Final = Demand(
    "that another message is not delivered, together with its time",
    "broker/delay/timer.py",
    (_YES, _YES, _NO, _NO, _NO, _NO, _NO),
    (PROPERTY_TIMER_DEL_UNIQUE_KEY,),
)
RETRY: Final = Demand(
    "to be delivered to a group once more, or to be its dead letter",
    "broker/messages/send.py",
    (_YES, _YES, _NO, _RETRY_IN_A_BATCH, _NO, _RETRY_IN_A_ROW, _NO),
    prefix=RETRY_PREFIX,
)
MULTI_DISPATCH: Final = Demand(
    "to stand in further queues",
    "store/dispatch/multi_dispatch.py",
    # A half message gets them when it is committed. A row that is stored alone gets them, too.
    (_YES, _NO, _YES, _NO, _NO, _NO, _YES),
    (PROPERTY_MULTI_DISPATCH,),
)
ORDER: Final = Demand(
    "to be counted as a message in order",
    "broker/messages/send.py",
    (_YES, _YES, _NO, _NO, _NO, _NO, _NO),
    (PROPERTY_SHARDING_KEY,),
)
BROKERS_WORD: Final = Demand(
    "nothing: the broker says it of each message",
    "",
    (_OWN, _OWN, _OWN, _OWN, _NO, _OWN, _OWN),
    (PROPERTY_CLUSTER, PROPERTY_TIMER_OUT_MS),
)
ONE_RECORD: Final = Demand(
    "nothing: the store says it of one record", "", (_OWN,) * len(Carrier), OF_ONE_RECORD
)
CHECKS: Final = Demand(
    "nothing: the broker says it of a half message that was asked about",
    "",
    (_NO, _NO, _OWN, _NO, _NO, _NO, _NO),
    (PROPERTY_PREPARED_QUEUE_OFFSET, PROPERTY_CHECK_TIMES),
)
HOSTS: Final = Demand(
    "nothing: it follows from the addresses",
    "",
    (_OWN,) * len(Carrier),
    flags=SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6,
)
#: A refusal names the first demand in this order.
DEMANDS: Final = (
    *(TRANSACTION, TRANSACTION_STATE, DELAY_LEVEL, DELIVERY_TIME, RECALL, RETRY),
    *(MULTI_DISPATCH, ORDER, BROKERS_WORD, ONE_RECORD, CHECKS, HOSTS),
)

#: The properties that a plain message does not have.
NOT_PLAIN_NAMES: Final = frozenset(name for demand in DEMANDS for name in demand.names)
NOT_PLAIN_PREFIXES: Final = tuple(demand.prefix for demand in DEMANDS if demand.prefix)
NOT_PLAIN_FLAGS: Final = sum(demand.flags for demand in DEMANDS)


def _acted_on(carrier: Carrier) -> dict[str, Demand | None]:
    found: dict[str, Demand | None] = {}
    for demand in DEMANDS:
        verdict = demand.verdicts[carrier]
        if verdict == DROPPED:
            found |= dict.fromkeys(demand.names)
        elif verdict != KEPT and carrier is not Carrier.ROW:
            found |= dict.fromkeys(demand.names, demand)
    return found


#: The names of properties that are not just kept, by carrier: None for those that are dropped. A
#: row's demands were judged when its chunk came, and it is published whatever they are.
ACTED_ON: Final = tuple(_acted_on(carrier) for carrier in Carrier)


def judged(asked: Mapping[Demand, str], carrier: Carrier) -> tuple[Demand, ...]:
    """The demands that a message really makes, in the order of the table; `asked` has those that
    its properties name, with their values. Raises BadRequest if the carrier may not make one."""
    found = tuple([one for one in DEMANDS if one in asked and one.asks(asked[one])])
    for demand in found:
        refuse(demand, carrier)
    return found


def refuse(demand: Demand, carrier: Carrier) -> None:
    """Raise BadRequest if the carrier may not make this demand."""
    why = demand.verdicts[carrier].why
    if why:
        raise BadRequest.illegal_message(why)
