"""What Spark says of a column that is not there, and what a topic's column is called."""

from __future__ import annotations

import re
from typing import Final

from aerobee.pipeline.decode.columns import TOPIC_COLUMNS
from aerobee.pipeline.foreign_options import COLUMN_WORDS

_NO_COLUMN: Final = re.compile(r"\[UNRESOLVED_COLUMN\b.*?\] (.*?with name `(.*?)` .*)")
_STATE: Final = re.compile(r" SQLSTATE: \w+;?$")


def missing_column(text: str) -> str | None:
    """One sentence of an error of Spark about a column it cannot find; None of any other error."""
    found = _NO_COLUMN.match(text.partition("\n")[0])
    if found is None:
        return None
    said, name = _STATE.sub("", found[1]), found[2].lower()
    if name in COLUMN_WORDS:
        return f"{said} A topic's column is {COLUMN_WORDS[name]}."
    for column in TOPIC_COLUMNS:
        if column.name.lower() == name and not column.standard:
            return f"{said} A topic has it when option columns names it (columns=* takes all)."
    return said
