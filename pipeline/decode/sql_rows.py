"""SQL92 filters over many messages at once: which of them match.

Arrow finds the values of the properties that the expression names, for all messages together; then
the compiled expression is asked for each message. No other property is looked at.
"""

from __future__ import annotations

import numpy as np

from aerobee.pipeline.decode.properties import Properties
from aerobee.protocol.filters.sql_filter import compile_sql


class SqlRows:
    """A filter, compiled from an expression that was checked before."""

    def __init__(self, expression: str) -> None:
        self._filter = compile_sql(expression)

    def __call__(self, properties: Properties) -> np.ndarray:
        """bool[n]: which of the messages match."""
        names, matches = self._filter.names, self._filter.matches
        if not names:
            return np.full(len(properties.text), matches({}))
        columns = [properties.value(name).to_pylist() for name in names]
        rows = zip(*columns, strict=True)
        found = (matches(dict(zip(names, row, strict=True))) for row in rows)
        return np.fromiter(found, np.bool_, len(properties.text))
