"""Events are written before changes are made and answered; refusals are summed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aerobee.access.audit import recorder as recorder_module
from aerobee.access.audit.recorder import Recorder
from aerobee.access.audit.sink import Page, Place
from aerobee.protocol.bodies.audit import DONE, REFUSED, AuditEvent, parse_event
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest


class Sink:
    """Keeps lines in memory, or fails."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.begun: list[tuple[int, list[str]]] = []
        self.error: OSError | None = None
        self.is_closed = False

    def write(self, events: Sequence[bytes]) -> None:
        self._fail()
        self.events += [one for line in events if (one := parse_event(line)) is not None]

    def begin(self, lines: Sequence[bytes], under_way: int) -> None:
        self._fail()
        found = [one.object for line in lines if (one := parse_event(line)) is not None]
        self.begun.append((under_way, found))

    def page(self, _place: Place, _since_ms: int) -> Page:
        return Page(b"", Place(), False, 0)

    def close(self) -> None:
        self.is_closed = True

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    @property
    def told(self) -> list[tuple[str, str, int]]:
        return [(one.object, one.outcome, one.times) for one in self.events]


FULL = OSError(28, "No space left on device")


def made() -> tuple[Recorder, Sink]:
    sink = Sink()
    return Recorder(sink, asyncio.get_running_loop(), lambda: 1_000), sink


async def test_a_change_is_noted_before_it_is_made_and_written_before_it_is_answered() -> None:
    recorder, sink = made()
    event = recorder.new_event("topic_update", object="T")
    await recorder.begin(event)
    assert sink.begun == [(0, ["T"])]
    assert sink.events == []
    await recorder.end(event, after="read=1")
    assert [(one.outcome, one.after) for one in sink.events] == [(DONE, "read=1")]
    await recorder.close()
    assert sink.is_closed


async def test_many_changes_share_a_write() -> None:
    recorder, sink = made()
    events = [recorder.new_event("topic_update", object=str(number)) for number in range(50)]
    await asyncio.gather(*map(recorder.begin, events))
    await asyncio.gather(*map(recorder.end, events))
    assert len(sink.begun) == 2
    assert len(sink.events) == 50
    assert len({one.id for one in sink.events}) == 50
    # The second write knew of the change that the first had noted.
    assert [under_way for under_way, _ in sink.begun] == [0, 1]
    await recorder.close()


async def test_a_change_that_cannot_be_noted_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    recorder, sink = made()
    sink.error = FULL
    event = recorder.new_event("topic_update", object="T")
    with pytest.raises(BadRequest, match=r"nothing was changed.*No space left") as refused:
        await recorder.begin(event)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert recorder.problem is not None
    assert "No space left" in recorder.problem
    sink.error = None
    await recorder.begin(event)
    assert recorder.problem is None
    await recorder.end(event)
    await recorder.close()
    assert caplog.text.count("not written") == 1


async def test_the_event_of_a_change_that_is_made_waits_and_no_other_begins() -> None:
    recorder, sink = made()
    event = recorder.new_event("topic_update", object="made")
    await recorder.begin(event)
    sink.error = FULL
    await recorder.end(event)
    with pytest.raises(BadRequest):
        await recorder.begin(recorder.new_event("topic_update", object="other"))
    sink.error = None
    assert recorder._retry is not None
    recorder._retry.cancel()
    recorder._try_again()
    await recorder._wait_idle()
    assert recorder.problem is None
    assert sink.told == [("made", DONE, 1)]
    await recorder.close()


async def test_refusals_of_a_kind_are_one_event_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, sink = made()
    for number in range(1_000):
        event = recorder.new_event("topic_delete", object=f"T{number}", address="10.0.0.1")
        recorder.refused(event, "no right")
    recorder.refused(recorder.new_event("topic_delete", address="10.0.0.2"), "no right")
    key = "topic_delete", "", "10.0.0.1"
    recorder._kinds[key].timer.cancel()
    recorder._minute_over(key)
    recorder.refused(recorder.new_event("topic_delete", address="10.0.0.1"), "again")
    await recorder.close()
    assert [(one.object, one.times) for one in sink.events if one.address == "10.0.0.1"] == [
        *(("T0", 1), ("T999", 999), ("", 1))
    ]
    assert recorder.counts[REFUSED] == sum(one.times for one in sink.events) == 1_002


async def test_kinds_of_refusals_are_bounded_and_so_are_lines_that_wait() -> None:
    recorder, sink = made()
    sink.error = FULL
    for number in range(3_000):
        recorder.refused(recorder.new_event("topic_delete", address=str(number)), "no right")
    assert len(recorder._kinds) <= recorder_module.MOST_KINDS + 1
    sink.error = None
    await recorder.close()
    assert sum(one.times for one in sink.events) == 3_000


async def test_changes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_UNDER_WAY", 3)
    recorder, _ = made()
    events = [recorder.new_event("topic_update") for _ in range(4)]
    begun = await asyncio.gather(*map(recorder.begin, events), return_exceptions=True)
    assert [isinstance(one, BadRequest) for one in begun] == [False, False, False, True]
    recorder.end_refused(events[0], "wrong")
    await recorder.begin(events[3])
    await recorder.close()


async def test_after_the_end_nothing_begins_and_nobody_waits() -> None:
    recorder, sink = made()
    event = recorder.new_event("topic_update", object="cut off")
    await recorder.begin(event)
    await recorder.close()
    with pytest.raises(BadRequest, match="the process ends"):
        await recorder.begin(recorder.new_event("topic_update"))
    await recorder.end(event)
    assert sink.events == []
