"""Offsets as JSON, limits shared over queues, ranges split into partitions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.pipeline.brokers.offsets import (
    Mark,
    Position,
    Queue,
    Range,
    from_json,
    limited,
    parse_assign,
    parse_offsets,
    position_from_json,
    position_to_json,
    split,
    to_json,
)

A, B, C = Queue("t", "one", 0), Queue("t", "one", 10), Queue("t", "two", 2)
offsets_of_queues = st.dictionaries(
    st.builds(Queue, st.text(max_size=3), st.text(max_size=3), st.integers(0, 99)),
    st.integers(0, 10**9),
    max_size=12,
)


@given(offsets_of_queues)
def test_json_gives_back_the_offsets(offsets: dict[Queue, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_equal_offsets_are_equal_text() -> None:
    assert json.dumps(to_json({C: 3, B: 2, A: 1})) == json.dumps(to_json({A: 1, B: 2, C: 3}))
    assert json.dumps(to_json({B: 2, A: 1})) == '{"t": {"one": {"0": 1, "10": 2}}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "must be an object"),
        ('{"t": 3}', "topic 't' must be an object"),
        ('{"t": {"b": [1]}}', "broker 'b' of 't' must be an object"),
        ('{"t": {"b": {"x": 1}}}', "'x' is no queue number"),
        ('{"t": {"b": {"0": "1"}}}', "is no offset"),
        ('{"t": {"b": {"0": -3}}}', "-3 is no offset"),
        ('{"t": {"b": {"0": true}}}', "is no offset"),
    ],
)
def test_offsets_that_are_none_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_offsets(text)


def test_both_ends_may_be_named_by_users_but_not_in_a_checkpoint() -> None:
    assert parse_offsets('{"t": {"one": {"0": -2, "10": -1}}}') == {A: -2, B: -1}
    with pytest.raises(ValueError, match="-1 is no offset"):
        from_json({"t": {"one": {"0": -1}}})


@pytest.mark.parametrize("text", ["{}", '{"t": {"b": []}}', '{"t": {"b": [-1]}}', '{"t": ["b"]}'])
def test_an_assignment_without_queues_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"queue|must be an object"):
        parse_assign(text)


def test_an_assignment_names_queues() -> None:
    assert parse_assign('{"t": {"one": [0, "10"]}}') == {A, B}


@given(
    st.dictionaries(
        st.sampled_from([A, B, C]), st.tuples(st.integers(0, 1000), st.integers(0, 1000))
    ),
    st.integers(1, 1500),
)
def test_limits_are_kept_and_used(lags: dict[Queue, tuple[int, int]], most: int) -> None:
    start = {queue: first for queue, (first, _) in lags.items()}
    end = {queue: first + lag for queue, (first, lag) in lags.items()}
    held = limited(start, end, most)
    assert set(held) == set(end)
    taken = {queue: held[queue] - start[queue] for queue in held}
    assert sum(taken.values()) == min(most, sum(end.values()) - sum(start.values()))
    for queue, rows in taken.items():
        assert 0 <= rows <= end[queue] - start[queue]


def test_a_limit_is_shared_in_proportion_to_the_lag() -> None:
    held = limited({A: 0, B: 50, C: 7}, {A: 900, B: 150, C: 7}, 100)
    assert held == {A: 90, B: 60, C: 7}


def test_a_limit_of_one_still_moves() -> None:
    held = limited({A: 0, B: 0}, {A: 1000, B: 1000}, 1)
    assert sum(held.values()) == 1


@given(st.lists(st.integers(0, 40), max_size=6), st.one_of(st.none(), st.integers(1, 60)))
def test_splits_cover_each_offset_once(sizes: list[int], at_least: int | None) -> None:
    ranges = [Range(Queue("t", "b", number), 100, 100 + size) for number, size in enumerate(sizes)]
    pieces = split(ranges, at_least)
    covered = [(one.queue, offset) for one in pieces for offset in range(one.start, one.end)]
    wanted = [(one.queue, offset) for one in ranges for offset in range(one.start, one.end)]
    assert covered == wanted
    assert all(one.size > 0 for one in pieces)
    filled = sum(size > 0 for size in sizes)
    assert len(pieces) == max(filled, min(at_least or 0, sum(sizes)))


def test_the_largest_range_is_split_first() -> None:
    pieces = split([Range(A, 0, 300), Range(B, 0, 100)], 4)
    assert pieces == [Range(A, 0, 100), Range(A, 100, 200), Range(A, 200, 300), Range(B, 0, 100)]


def test_no_piece_has_more_than_the_most() -> None:
    pieces = split([Range(A, 0, 10), Range(B, 0, 3)], None, 4)
    assert [one.size for one in pieces] == [3, 3, 4, 3]
    assert len(split([Range(A, 0, 10), Range(B, 0, 3)], 6, 4)) == 6
    assert [one.size for one in split([Range(A, 5, 8)], 9, 1)] == [1, 1, 1]


def test_a_position_is_the_same_after_its_json_and_offsets_are_read_beside_marks() -> None:
    position = Position({A: 5, B: 0}, {A: Mark(4711, 1_700_000_000_000)})
    text = json.dumps(position_to_json(position))
    assert position_from_json(json.loads(text)) == position
    # A checkpoint's text may stand in the option startingOffsets.
    assert parse_offsets(text) == position.offsets
    # Versions without marks wrote offsets alone.
    assert position_from_json(to_json(position.offsets)) == Position(position.offsets, {})
    wrong = {**to_json(position.offsets), "/last": {A.topic: {A.broker: {"0": [1, True]}}}}
    with pytest.raises(ValueError, match="is no mark of a message"):
        position_from_json(wrong)
