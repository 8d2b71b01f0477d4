"""Rows of a store's partition, and what becomes of records that give none.

`permissive` makes a row of a bad record, with its log offset and an `error` and nothing else, if
the column `error` is among those asked for; `dropmalformed` leaves it out and says how many there
were; `failfast` ends the read with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.decode import Form, decode
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.options import FAIL_FAST, PERMISSIVE, StoreOptions
from aerobee.pipeline.files.walk import Damage

log = logging.getLogger("aerobee.pipeline")

#: Larger batches are slower, and crowd the JVM.
ROWS_MAX: Final = 32768


class Reading:
    """How rows are made for one partition, and the count of what became none."""

    def __init__(self, options: StoreOptions, selection: Selection) -> None:
        self.options = options
        self.selection = selection
        self.form = Form(
            options.columns,
            properties=options.properties,
            decompress=options.decompress,
            check_crc=options.check_crc,
            selection=selection,
            damage_is_bad=True,
        )
        self._shows_bad = options.mode == PERMISSIVE and any(
            column.name == "error" for column in options.columns
        )
        self._bad = 0
        self._example = ""

    def rows(
        self, data: bytes | memoryview, log_offset: int, starts: np.ndarray
    ) -> Iterator[tuple[pa.RecordBatch, list[Damage]]]:
        """Batches of the records at these positions, with what is bad among them."""
        for first in range(0, len(starts), ROWS_MAX):
            batch, bad = decode(data, starts[first : first + ROWS_MAX], self.form, log_offset)
            yield batch, [Damage(log_offset + one.position, one.reason) for one in bad]

    def bad(self, path: str, damage: list[Damage]) -> Iterator[pa.RecordBatch]:
        """Rows for bad records, if the mode makes any. Raises StoreReadError in failfast."""
        if not damage:
            return
        texts = [f"{path}: what is at log offset {one[0]} {one[1]}" for one in damage]
        if self.options.mode == FAIL_FAST:
            raise StoreReadError(f"{texts[0]} (mode failfast)")
        self._example = self._example or texts[0]
        self._bad += len(damage)
        if self._shows_bad:
            values = {"error": texts, "commitLogOffset": [one.log_offset for one in damage]}
            schema = self.form.schema
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(values[field.name], field.type)
                    if field.name in values
                    else pa.nulls(len(damage), field.type)
                    for field in schema
                ],
                schema=schema,
            )

    def close(self) -> None:
        """Say how many bad records there were."""
        if self._bad:
            log.warning("%d bad records; the first: %s", self._bad, self._example)
