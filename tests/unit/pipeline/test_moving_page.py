"""docs/spark-moving.md: it has each word that is answered, and what it advises is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aerobee.pipeline import foreign_options
from aerobee.pipeline.decode.columns import TOPIC_COLUMNS
from aerobee.pipeline.sink.schema import SINK_COLUMNS
from aerobee.pipeline.sink.sink_options import SINK_OPTIONS
from aerobee.pipeline.source.source_options import SOURCE_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "spark-moving.md").read_text()
ANSWERED = foreign_options.SOURCE_WORDS | foreign_options.SINK_WORDS
WORDS = sorted(
    word for word, (whose, _) in ANSWERED.items() if not whose.startswith(("Pulsar", "tables"))
)
KNOWN = {*SOURCE_OPTIONS, *SINK_OPTIONS, *SINK_COLUMNS, *(one.name for one in TOPIC_COLUMNS)}
#: Spark's own, and values.
OTHERS = {"from_json", "foreachBatch", "latest", "error", "partition"}


@pytest.mark.parametrize("word", WORDS)
def test_each_word_that_is_answered_stands_there(word: str) -> None:
    families = {f"`{word[: end + 1]}*`" for end in range(len(word)) if word[end] == "."}
    assert f"`{word}`" in PAGE or any(one in PAGE for one in families), word


def test_what_is_called_something_else_here_is_called_so() -> None:
    named = set()
    for line in PAGE.splitlines():
        cells = line.split(" | ")
        if line.startswith("| `") and len(cells) > 1:
            named |= set(re.findall(r"`([A-Za-z]\w*)`", cells[1]))
    assert len(named) > 20
    assert named - KNOWN - OTHERS == set()
