"""The table of what messages ask for, held against the plain form: it is sent every property that
has a name among clients and brokers, and every bit of a sysFlag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message import properties
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.demands import (
    CHECKS,
    DELAY_LEVEL,
    DEMANDS,
    DROPPED,
    MULTI_DISPATCH,
    NOT_PLAIN_FLAGS,
    NOT_PLAIN_NAMES,
    NOT_PLAIN_PREFIXES,
    ORDER,
    RECALL,
    Carrier,
)
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_record
from tests.native.drawn import topics_made
from tests.native.replayed import SETTINGS, Read, replayed

PAGE = Path(__file__).parents[4] / "docs" / "decisions" / "0025-what-a-message-asks-for.md"
_CLUSTER = "CLUSTER\x01DefaultCluster"
_NAMES = properties.SYSTEM_PROPERTIES | {
    text
    for name, text in vars(properties).items()
    if name.startswith("PROPERTY_") and name != "PROPERTY_SEPARATOR"
}
_VALUES = ("1", "x", "true")


class Tried(NamedTuple):
    """A send with one property or one bit; the properties of what it stores, if nothing is made of
    them."""

    what: str | int
    header: SendMessageHeader
    body: bytes
    expected: str


def _tried(
    what: str | int, shared: str = "", own: str | None = None, flags: int = 0, topic: str = "Orders"
) -> Tried:
    """A send with these properties; a batch of one message if that has its `own`."""
    header = SendMessageHeader(
        "makers", topic, "TBW102", 4, 0, flags, 0, 0, shared, batch=own is not None
    )
    body = b"b" if own is None else encode_batch([BatchItem(0, b"b", own.encode())])
    parts = (own or "", shared, _CLUSTER)
    return Tried(what, header, body, "\x02".join([one for one in parts if one]))


def _sends() -> Iterator[Tried]:
    # The compiled form knows of WAIT what becomes of it.
    for name in _NAMES - {properties.PROPERTY_WAIT}:
        for value in _VALUES:
            text = f"{name}\x01{value}"
            yield from (_tried(name, text), _tried(name, text, ""), _tried(name, "", text))
    for bit in range(31):
        yield from (_tried(1 << bit, flags=1 << bit), _tried(1 << bit, own="", flags=1 << bit))


def _served(
    folder: Path, sends: Sequence[Tried], **changes: bool
) -> tuple[list[Command], dict[str, bytes]]:
    """The answers of the plain form, and its files."""
    made = [Read(0, one, awaited=True) for one in topics_made()]
    for one in sends:
        batch = one.header.batch
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        made.append(Read(0, make_request(code, one.header.to_ext(), one.body).encode(), True))
    outcome = asyncio.run(replayed(folder, made, None, **changes))
    return FrameDecoder().feed(outcome.answers[0])[-len(sends) :], outcome.files


def _is_as_it_came(one: Tried, answer: Command, files: dict[str, bytes]) -> bool:
    at = parse_offset_msg_id(answer.ext["msgId"])[2]
    start = at - at % int(SETTINGS["commit_log_segment_bytes"])
    message = decode_record(files[f"commitlog/{start:020d}"], at - start)
    found = message.topic, message.sys_flag, properties.encode_properties(message.properties)
    return found == (one.header.topic, one.header.sys_flag, one.expected)


@pytest.mark.parametrize("multi_dispatch", [False, True])
def test_whatever_the_plain_form_acts_on_has_a_row(tmp_path: Path, multi_dispatch: bool) -> None:
    """A message that is refused, stored elsewhere or stored otherwise is not plain."""
    sends = list(_sends())
    answers, files = _served(tmp_path / "s", sends, multi_dispatch=multi_dispatch)
    found = {
        one.what
        for one, answer in zip(sends, answers, strict=True)
        if answer.code or not _is_as_it_came(one, answer, files)
    }
    names = {one for one in found if isinstance(one, str)}
    assert names <= NOT_PLAIN_NAMES
    assert sum(one for one in found if isinstance(one, int)) == NOT_PLAIN_FLAGS
    # The table has more names that no send here can show: recalls and checks take more than one
    # property, and order is only counted.
    unseen = {*RECALL.names, *CHECKS.names, *ORDER.names}
    unseen |= set() if multi_dispatch else {*MULTI_DISPATCH.names}
    assert names == NOT_PLAIN_NAMES - unseen


def test_the_plain_form_gives_each_refusal_of_the_table(tmp_path: Path) -> None:
    # The first is stored, and has a key: so there is an index to look into.
    sends, wanted = [_tried("", "KEYS\x01k")], []
    for demand in DEMANDS:
        value = "1" if demand is DELAY_LEVEL else "true"
        text = f"{demand.names[0]}\x01{value}" if demand.names else ""
        topic = f"{demand.prefix}takers" if demand.prefix else "Orders"
        half = f"TRAN_MSG\x01true\x02PGROUP\x01p\x02{text}"
        for carrier, given in (
            (Carrier.HALF, (half,)),
            (Carrier.BATCH, (text, "")),
            (Carrier.IN_BATCH, ("", text)),
        ):
            if demand.verdicts[carrier].why:
                sends.append(_tried(demand.what, *given, flags=demand.flags, topic=topic))
                wanted.append(demand.verdicts[carrier].why)
    answers, _ = _served(tmp_path / "s", sends)
    assert [answer.remark for answer in answers[1:]] == wanted
    assert {answer.code for answer in answers[1:]} == {ResponseCode.MESSAGE_ILLEGAL}


def test_each_demand_says_what_becomes_of_it_in_each_carrier() -> None:
    for demand in DEMANDS:
        assert len(demand.verdicts) == len(Carrier), demand.what
        assert bool(demand.names) + bool(demand.flags) + bool(demand.prefix) == 1, demand.what
        assert all(bool(one.why) == (one.word == "refused") for one in demand.verdicts)
        acts = any(one.word in ("granted", "refused") for one in demand.verdicts)
        assert acts == bool(demand.where), f"{demand.what}: where it is carried out"
        assert acts or DROPPED in demand.verdicts, demand.what
        for place in filter(None, [demand.where]):
            assert (Path(__file__).parents[4] / place).exists(), place
    names = [name for demand in DEMANDS for name in demand.names]
    assert len(names) == len(set(names)), "a property asks for two things"
    assert NOT_PLAIN_PREFIXES == ("%RETRY%",)


def test_the_page_has_the_table() -> None:
    heads = [one.name.lower().replace("_", " ") for one in Carrier]
    rows = [f"| asks for | by | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for demand in DEMANDS:
        by = ", ".join([f"`{one}`" for one in demand.names])
        by = by or (f"topics `{demand.prefix}*`" if demand.prefix else f"sysFlag {demand.flags:#x}")
        words = [one.word for one in demand.verdicts]
        rows.append(f"| {demand.what} | {by} | {' | '.join(words)} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"{PAGE.name} has to have:\n{table}"
