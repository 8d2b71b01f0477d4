"""A disk that remembers everything: a FUSE server of one file, which records what reaches it.

    python recorder.py DIRECTORY LOG BYTES [SYNC_DELAY_MS [IMAGE]]

Serves DIRECTORY/disk, BYTES long, from memory (IMAGE's bytes at first), and appends to the file LOG
each write, each barrier and each mark, in the order in which the kernel handed them over
(`block_log.py` reads it). A loop device on that file, with a file system on it, makes everything
above real: journal, page cache, mapped stores, the kernel's own order of writes.

It speaks the FUSE protocol on the kernel's device itself (docs/reliability.md 7.1). It is a process
of its own and never touches the file system that lies on its disk: the kernel would wait for it,
and it for the kernel. Ends when the directory is unmounted.

Other things are said by looking up names in the directory, which enter the same queue as the writes
and so have a true place between them; none of them exists, and no name is used twice:

    mark_N                  a mark with the number N is logged
    failon_N_START_END      writes that touch bytes [START, END) fail with EIO; several add up
    failsync_N              barriers fail with EIO
    failoff_N               all of that is over
"""

import ctypes
import errno
import os
import struct
import sys
import time
from pathlib import Path
from typing import BinaryIO

#: Kind, length of the data that follows, offset or number, seconds of the monotonic clock.
LOG_ENTRY = struct.Struct("<IIQd")
WRITE, BARRIER, MARK = 1, 2, 3

_IN = struct.Struct("<IIQQ")
_OUT = struct.Struct("<IiQ")
_HEADER_BYTES = 40  # _IN, then uid, gid, pid and padding
_READ_BYTES = 2 << 20
_RANGE = struct.Struct("<QQI")
_OPENED = struct.pack("<QII", 1, 0, 0)
# Version 7.31, no flags: with the write-back cache a write would arrive later, or merged.
_INIT = struct.pack("<4I2H2I2H8I", 7, 31, 131072, 0, 12, 10, 1 << 20, 1, 256, 0, *[0] * 8)
_ROOT, _DISK = 1, 2
_LONG_S = 3600

# Opcodes of linux/fuse.h.
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _WRITE = 1, 2, 3, 14, 15, 16
_RELEASE, _FSYNC, _FLUSH, _INIT_CODE, _OPENDIR, _RELEASEDIR = 18, 20, 25, 26, 27, 29
_INTERRUPT, _BATCH_FORGET, _FALLOCATE = 36, 42, 43
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)


class Refused(Exception):
    """A request is answered with this error number."""


class Recorder:
    """The state of one disk; `answer` is the whole protocol."""

    def __init__(self, disk: bytearray, log: BinaryIO, sync_delay_s: float) -> None:
        self._disk = disk
        self._log = log
        self._sync_delay_s = sync_delay_s
        self._failing: list[tuple[int, int]] = []
        self._failing_sync = False

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """The body of the reply. Raises Refused."""
        if opcode == _WRITE:
            return self._write(body)
        if opcode == _READ:
            _, offset, size = _RANGE.unpack_from(body)
            return bytes(self._disk[offset : offset + size])
        if opcode == _FSYNC:
            return self._barrier()
        if opcode == _LOOKUP:
            return self._lookup(body.rstrip(b"\0").decode())
        if opcode == _GETATTR:
            return struct.pack("<QII", _LONG_S, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return _OPENED
        if opcode == _INIT_CODE:
            return _INIT
        if opcode in (_RELEASE, _FLUSH, _RELEASEDIR):
            return b""
        # Without discards a block keeps what was written last, as on a plain disk.
        raise Refused(errno.EOPNOTSUPP if opcode == _FALLOCATE else errno.ENOSYS)

    def _write(self, body: bytes) -> bytes:
        _, offset, size = _RANGE.unpack_from(body)
        if any(offset < end and start < offset + size for start, end in self._failing):
            raise Refused(errno.EIO)
        data = body[_HEADER_BYTES : _HEADER_BYTES + size]
        self._append(WRITE, offset, data)
        self._disk[offset : offset + size] = data
        return struct.pack("<II", size, 0)

    def _barrier(self) -> bytes:
        if self._sync_delay_s:
            time.sleep(self._sync_delay_s)
        if self._failing_sync:
            raise Refused(errno.EIO)
        self._append(BARRIER, 0)
        return b""

    def _lookup(self, name: str) -> bytes:
        if name == "disk":
            return struct.pack("<4Q2I", _DISK, 0, _LONG_S, _LONG_S, 0, 0) + self._attributes(_DISK)
        word, *numbers = name.split("_")
        if word == "mark":
            self._append(MARK, int(numbers[0]))
        elif word == "failon":
            self._failing.append((int(numbers[1]), int(numbers[2])))
        elif word == "failsync":
            self._failing_sync = True
        elif word == "failoff":
            self._failing, self._failing_sync = [], False
        raise Refused(errno.ENOENT)

    def _attributes(self, node: int) -> bytes:
        size, mode = (len(self._disk), 0o100600) if node == _DISK else (0, 0o40755)
        times = (0,) * 6
        return struct.pack(
            "<6Q10I", node, size, size // 512, *times[:3], *times[3:], mode, 1, 0, 0, 0, 4096, 0
        )

    def _append(self, kind: int, number: int, data: bytes = b"") -> None:
        self._log.write(LOG_ENTRY.pack(kind, len(data), number, time.monotonic()))
        self._log.write(data)


def mount(directory: str) -> int:
    """The descriptor on which the kernel asks for what lies below `directory`."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"rec", directory.encode(), b"fuse", 0, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), directory)
    return fd


def serve(fd: int, recorder: Recorder) -> None:
    """Answer requests until the directory is unmounted."""
    while True:
        try:
            request = os.read(fd, _READ_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):  # a request was taken back
                continue
            raise
        _, opcode, unique, node = _IN.unpack_from(request)
        if opcode in _UNANSWERED:
            continue
        code, body = 0, b""
        try:
            body = recorder.answer(opcode, node, request[_HEADER_BYTES:])
        except Refused as refusal:
            code = refusal.args[0]
        try:
            os.write(fd, _OUT.pack(_OUT.size + len(body), -code, unique) + body)
        except FileNotFoundError:  # whoever asked has been killed meanwhile
            continue


def main(directory: str, log: str, size: str, delay_ms: str = "0", image: str = "") -> None:
    disk = bytearray(int(size))
    if image:
        data = Path(image).read_bytes()
        disk[: len(data)] = data
    with open(log, "wb", buffering=1 << 20) as entries:
        fd = mount(directory)
        print("mounted", flush=True)
        serve(fd, Recorder(disk, entries, int(delay_ms) / 1000))


if __name__ == "__main__":
    main(*sys.argv[1:])
