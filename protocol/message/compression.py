"""Inflates bodies that their producers compressed, within a bound.

Bit 0 of the sysFlag says that a body is compressed, bits 8 to 10 name the compression: LZ4 (the
frame format), ZSTD, or zlib, which 0 means too (WIRE.md 6.4). zlib is Python's own; the other two
are packages that come with the extra `compression`. Without its package a body is not handed on as
if it were plain: `NoCodec` names the package to install.

A few bytes may claim to be gigabytes. So each function here takes the most bytes that may come out,
and touches the memory for them only as far as bytes really came out. Bytes after the end of a
stream are an error for LZ4 and ZSTD, where they may be a second frame; for zlib Java's inflater
passes over them, and so does this module.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from aerobee.protocol.message.record_layout import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_LZ4,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
    SYS_COMPRESSION_ZSTD,
)

#: The command that installs the readers of LZ4 and ZSTD.
EXTRA: Final = "pip install 'aerobee[compression]'"
# ZSTD's memory beside the output. 8 MiB is the window of its level 19; above that are `--ultra`
# levels, and headers that claim more than they need.
_ZSTD_WINDOW_BYTES: Final = 64 * 1024 * 1024
# Bytes that are fed at once. A block of 128 KiB may be 4 bytes long, so the output passes its limit
# by 16 MiB at most before that is seen.
_ZSTD_BITE_BYTES: Final = 512


class CannotInflate(ValueError):
    """A compressed body cannot be inflated; the text says why."""


class NoCodec(CannotInflate):
    """The compression of the body cannot be read here; the text names the package to install."""


class TooLarge(CannotInflate):
    """The plain body is over the limit."""


def is_compressed(sys_flag: int) -> bool:
    """Whether a body with that sysFlag is stored compressed."""
    return bool(sys_flag & SYS_COMPRESSED)


def inflate(body: bytes, sys_flag: int, limit: int) -> bytes:
    """The plain body of a compressed one, of `limit` bytes at most; raises CannotInflate."""
    assert is_compressed(sys_flag)
    assert limit > 0
    kind = sys_flag & SYS_COMPRESSION_MASK
    way = _WAYS.get(kind)
    if way is None:
        raise NoCodec(f"a body is compressed with type {kind:#x} of the sysFlag, which is unknown")
    return way(body, limit)


def _inflate_zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, limit)
    except zlib.error as error:
        raise _damaged("zlib", error) from error
    if not stream.eof:
        # A byte more tells "too large" from "cut off".
        raise _unfinished("zlib", limit, more=bool(stream.decompress(stream.unconsumed_tail, 1)))
    return plain


def _inflate_lz4(body: bytes, limit: int) -> bytes:
    try:
        from lz4 import frame
    except ImportError as error:
        raise _not_installed("LZ4", "lz4") from error
    stream = frame.LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, limit)
        if not stream.eof:
            more = not stream.needs_input and bool(stream.decompress(b"", 1))
            if more or not stream.eof:
                raise _unfinished("LZ4", limit, more=more)
    except (RuntimeError, ValueError) as error:  # lz4's errors for bytes that are not a frame
        if isinstance(error, CannotInflate):
            raise
        raise _damaged("LZ4", error) from error
    if stream.unused_data:
        raise _damaged("LZ4", f"{len(stream.unused_data)} bytes behind its end")
    return plain


def _inflate_zstd(body: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise _not_installed("ZSTD", "zstandard") from error
    # The package has no bound for a frame that does not tell its size, like the frames of Java's
    # streams.
    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
    parts, size = [], 0
    try:
        for start in range(0, len(body), _ZSTD_BITE_BYTES):
            if stream.eof:
                raise _damaged("ZSTD", f"{len(body) - start} bytes behind its end")
            parts.append(stream.decompress(body[start : start + _ZSTD_BITE_BYTES]))
            size += len(parts[-1])
            if size > limit:
                raise _unfinished("ZSTD", limit, more=True)
    except zstandard.ZstdError as error:
        raise _damaged("ZSTD", error) from error
    if not stream.eof:
        raise _unfinished("ZSTD", limit, more=False)
    if stream.unused_data:
        raise _damaged("ZSTD", f"{len(stream.unused_data)} bytes behind its end")
    return b"".join(parts)


def _unfinished(name: str, limit: int, *, more: bool) -> CannotInflate:
    if more:
        return TooLarge(f"a body compressed with {name} is larger than {limit} bytes when plain")
    return CannotInflate(f"a body compressed with {name} is cut off")


def _damaged(name: str, why: object) -> CannotInflate:
    return CannotInflate(f"a body compressed with {name} is damaged: {why}")


def _not_installed(name: str, package: str) -> NoCodec:
    return NoCodec(
        f"a body is compressed with {name}, and the package {package} is not installed: {EXTRA}"
    )


_WAYS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    0: _inflate_zlib,
    SYS_COMPRESSION_ZLIB: _inflate_zlib,
    SYS_COMPRESSION_LZ4: _inflate_lz4,
    SYS_COMPRESSION_ZSTD: _inflate_zstd,
}
