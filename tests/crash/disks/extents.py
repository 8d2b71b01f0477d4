"""Where on a disk files, directories and the journal of an ext4 lie, in bytes."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

from tests.tools import tool

Range = tuple[int, int]
_FIEMAP = 0xC020660B
# struct fiemap: start, length, flags, mapped, room for, padding; then that number of struct
# fiemap_extent.
_HEAD, _EXTENT = struct.Struct("<QQIIII"), struct.Struct("<QQQ16xI12x")
_ROOM = 256
_SYNC_FIRST = 1


def extents_of(path: Path) -> list[Range]:
    """Where a file or directory of a mounted ext4 lies on its disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        request = bytearray(_HEAD.pack(0, 1 << 62, _SYNC_FIRST, 0, _ROOM, 0))
        request += bytes(_EXTENT.size * _ROOM)
        fcntl.ioctl(fd, _FIEMAP, request)
    finally:
        os.close(fd)
    mapped = _HEAD.unpack_from(request)[3]
    assert mapped < _ROOM, f"{path} is in more pieces than there is room for"
    found = []
    for number in range(mapped):
        _, start, length, _ = _EXTENT.unpack_from(request, _HEAD.size + number * _EXTENT.size)
        found.append((start, start + length))
    return found


def journal_of(image: Path) -> list[Range]:
    """Where the journal of an ext4 image lies; it stays where mkfs put it."""
    command = [tool("debugfs"), "-R", "blocks <8>", str(image)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    size = _block_bytes(image)
    blocks = sorted(int(word) for word in listed.split())
    assert blocks, f"{image} has no journal"
    return [(block * size, (block + 1) * size) for block in blocks]


def _block_bytes(image: Path) -> int:
    with image.open("rb") as file:
        file.seek(1024 + 24)  # s_log_block_size of the superblock
        (shift,) = struct.unpack("<I", file.read(4))
    return 1024 << int(shift)


def joined(ranges: list[Range]) -> list[Range]:
    """Neighbours made one."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result
