"""The compiled form's memory of texts that peers choose is bounded by bytes."""

from __future__ import annotations

import time
from types import SimpleNamespace

from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.header_encode import JSON
from tests.forms import compiled_form
from tests.native.test_header import HOST, Asked, as_json, signed

_ROUTE_BYTES = 32 << 20


class _Pulls:
    """Pulls of a queue without messages, and how often it was asked where they go."""

    def __init__(self) -> None:
        form = compiled_form()
        self.asked = 0
        self._form = form
        self._queue = SimpleNamespace(topic="T", queue_id=0, min_offset=0, max_offset=0)
        parts = [b"", b""]
        pulls = form.pulls(
            SimpleNamespace(log=SimpleNamespace(marks=None), reader=None), self, None, None,
            json_parts=parts, binary_parts=parts,
            memory_bytes=0, recent=(1, 1), old=(1, 1), most_messages=32, least_entries=1,
        )  # fmt: skip
        self._requests = form.requests(None, pulls, False, None)

    def pull_route(self, fields: dict[str, str]) -> object:
        self.asked += 1
        first = int(fields["subVersion"])
        codes = frozenset(range(first, first + len(fields["subscription"])))
        return self._form.pull_route(self._queue, False, codes, "G", None, None, 0, 0)

    def pull(self, version: int, subscription: str) -> None:
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subVersion": str(version), "subscription": subscription,
        }  # fmt: skip
        frame = make_request(Code.PULL_MESSAGE, fields).encode()
        self._requests.take(memoryview(frame), HOST, True, 1, 1 << 20, time.monotonic, float("inf"))


def test_pulls_of_many_tags_take_no_more_than_a_bound() -> None:
    """20,000 with 250 tags each took a sixth of a GiB and more: one group sufficed."""
    pulls = _Pulls()
    tags = "t" * 250
    pulls.pull(0, tags)
    pulls.pull(0, tags)
    assert pulls.asked == 1
    # Below what these take for sure: a place in the set, and a number.
    fill = _ROUTE_BYTES // (len(tags) * (16 + 32)) + 1
    for version in range(1, fill):
        pulls.pull(version, tags)
    assert pulls.asked == fill
    pulls.pull(0, tags)
    assert pulls.asked == fill + 1, "it is remembered still"


def test_pulls_of_as_many_groups_as_there_may_be_are_remembered() -> None:
    pulls = _Pulls()
    for _ in range(2):
        for version in range(15_000):
            pulls.pull(version, "ttt")
    assert pulls.asked == 15_000


def test_rights_on_names_that_nothing_can_have_are_not_remembered() -> None:
    """An account with a default right has it on any name: 20,000 of 16 KB were 320 MB."""
    asked = Asked()
    longest = b"t" * 600
    assert asked.topic_of(as_json(signed({b"b": longest})), JSON) == longest.decode()
    assert asked.topic_of(as_json(signed({b"b": b"t" * 1200})), JSON) is None
