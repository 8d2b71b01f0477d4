"""The quick way to cut properties gives what the careful one gives, and leaves the rest to it."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aerobee.pipeline.decode.properties import _FEW_NAMES, Properties, _cut, _split
from aerobee.protocol.message.properties import decode_properties

texts = st.lists(st.text("\x01\x02ab\u4e2d", max_size=14), max_size=8)


@settings(max_examples=1000)
@given(texts, st.integers(0, 3))
@example(["a\x01b", "", "b\x01a\x02", "a\x01\u4e2d\x02b\x01b"], 0)
@example(["a\x01b\x02\x02", "a"], 0)
@example(["a\x01b\x02c", "\x01d"], 0)
@example(["a\x01b\x02a\x01c"], 0)
def test_maps_are_those_of_the_reader_of_single_messages(written: list[str], skipped: int) -> None:
    text = pa.array(written, pa.string()).slice(skipped)
    found = Properties(text).as_map()
    found.validate(full=True)
    wanted = [decode_properties(one) for one in written[skipped:]]
    assert [dict(one) for one in found.to_pylist()] == wanted
    assert [len(one) for one in found.to_pylist()] == [len(one) for one in wanted]
    quick = _cut(text)
    if quick is not None:
        parents, names, values = _split(text)
        assert quick[0].tolist() == parents.tolist()
        assert (quick[1].to_pylist(), quick[2].to_pylist()) == (
            names.to_pylist(), values.to_pylist(),
        )  # fmt: skip


def test_what_clients_write_is_cut_the_quick_way() -> None:
    for written in (["A\x01b\x02C\x01d"], ["A\x01b\x02", "", "C\x01d"], ["A\x01b\x02C\x01d\x02"]):
        assert _cut(pa.array(written)) is not None


def test_a_name_that_comes_often_or_among_many_names_keeps_its_last_value() -> None:
    often = "\x02".join(f"n\x01{number}" for number in range(300))
    many = "\x02".join(f"n{number}\x01v" for number in range(_FEW_NAMES + 5))
    twice = f"{many}\x02n3\x01last"
    maps = Properties(pa.array([often, many, twice])).as_map().to_pylist()
    assert maps[0] == [("n", "299")]
    assert len(maps[1]) == len(maps[2]) == _FEW_NAMES + 5
    assert dict(maps[2])["n3"] == "last"
    assert Properties(pa.array([often, "n\x01x"])).as_map().to_pylist()[0] == [("n", "299")]
