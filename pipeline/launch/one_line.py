"""Errors of ours in one line, in the driver's Python: a hook for what nobody has caught.

So is Spark's about a column that is not there, with our word for what other sources call it. All
other errors keep their traceback; of one of these it is there for whoever asks
(`traceback.print_last()` in a shell).
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Final

from aerobee.pipeline.errors import quieten_pyspark, sentence_in
from aerobee.pipeline.foreign_options import missing_column
from aerobee.printable import printable

_OURS: Final = "aerobee.pipeline."


def sentence_of(error: BaseException) -> str | None:
    """The sentence of an error of ours, raised here or reported by Spark; None for another
    error."""
    if type(error).__module__.startswith(_OURS):
        return " ".join(str(error).split())
    return sentence_in(str(error)) or missing_column(str(error))


def show_ours_in_one_line(file: str | None = None) -> None:
    """From now on; with the line of `file` that was running, if that is given, whose frames are
    also where the traceback of any other error begins."""

    def hook(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        own = _from(file, frames)
        sentence = sentence_of(error)
        if sentence is None:
            traceback.print_exception(kind, error, own)
            return
        lines = [one.lineno for one in traceback.extract_tb(own) if one.filename == file]
        place = f" ({file}, line {lines[-1]})" if lines else ""
        print(printable(f"aerobee: {sentence}{place}"), file=sys.stderr, flush=True)

    quieten_pyspark()
    sys.excepthook = hook


def _from(file: str | None, frames: TracebackType | None) -> TracebackType | None:
    first = frames
    while file is not None and first is not None:
        if first.tb_frame.f_code.co_filename == file:
            return first
        first = first.tb_next
    return frames
