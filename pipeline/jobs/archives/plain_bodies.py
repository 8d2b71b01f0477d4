"""Bodies made plain where that can be done, and left as they were stored where it cannot.

The reader of log files calls a record bad whose body it cannot inflate, which is right for who
wants to read bodies. An archive must not lose a message for it: LZ4 and ZSTD bodies go in as they
are, and bits 8 to 10 of their `sysFlag` say what they are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.decode import inflate
from aerobee.protocol.message.record_layout import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
)

#: In the reader's errors about bodies of another compression than zlib.
UNKNOWN_COMPRESSION: Final = "compressed with"


def plain_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with zlib bodies inflated; one that is damaged gets an `error`."""
    flags = batch.column("sysFlag").fill_null(0).to_numpy()
    kinds = flags & SYS_COMPRESSION_MASK
    is_zlib = (kinds == 0) | (kinds == SYS_COMPRESSION_ZLIB)
    packed = np.flatnonzero((flags & SYS_COMPRESSED != 0) & is_zlib)
    if not len(packed):
        return batch
    bodies, errors = batch.column("body").to_pylist(), batch.column("error").to_pylist()
    for row in packed.tolist():
        try:
            bodies[row] = inflate(bodies[row], int(flags[row]))
        except ValueError as error:
            bodies[row], errors[row] = None, str(error)
    columns = {"body": pa.array(bodies, pa.binary()), "error": pa.array(errors, pa.string())}
    arrays = [columns.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
