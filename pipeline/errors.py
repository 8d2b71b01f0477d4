"""The errors of reading: each kind is one thing that the user may do something about.

Errors of the sink are beside what raises them (sink/). Texts name topic, broker and queue, never a
secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from aerobee.nearest_name import nearest_name

# The form in which the JVM reports our errors, from a planning process or a task: the name with its
# module.
_OURS: Final = re.compile(r"\baerobee\.pipeline\.(?:\w+\.)*([A-Z]\w*): (.+)")

# These loggers of PySpark write each error a second time, with all frames of Java, as JSON.
_LOUD: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


class OptionError(ValueError):
    """An option that is unknown, missing, given twice, or has a value it cannot have."""


class PipelineError(Exception):
    """Brokers or files refuse something while a plan is made or a partition is read."""


class NoSuchTopic(PipelineError):
    """No name server knows the topic."""


class Unreachable(PipelineError):
    """No name server, or no broker of that name, answered in time."""


class Refused(PipelineError):
    """A peer answered with a code that repeating the request will not change."""


class DataLoss(PipelineError):
    """Messages of a range that was to be read are gone (option failOnDataLoss)."""


class BadData(PipelineError):
    """A broker's answer, or a message in it, cannot be read."""


class StoreReadError(PipelineError):
    """A store's files cannot be read, or changed meanwhile; the text says where and what."""


def no_name_server(names: str, cause: object) -> str:
    """The text of the error that no name server answered, for reads and writes alike."""
    return (
        f"no name server answers ({names}): {cause}; is it running, and is nameServer its address "
        "as seen from here?"
    )


def known_names(given: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean ...?", or all that are known."""
    names = list(known)
    meant = nearest_name(given, names)
    return f"; did you mean {meant!r}?" if meant else f"; known are {', '.join(names)}"


def sentence_in(text: str) -> str | None:
    """The sentence of an error of ours in the text of Spark; None without such an error."""
    found = _OURS.findall(text)
    # The last of several counts, because a traceback shows the cause first.
    return found[-1][1].strip() if found else None


def quieten_pyspark() -> None:
    """From now on Spark raises its errors and logs nothing besides."""
    for name in _LOUD:
        logging.getLogger(name).disabled = True
