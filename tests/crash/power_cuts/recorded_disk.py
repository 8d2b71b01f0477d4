"""A real ext4 on a recording disk: recorder process, loop device, file system, put up and down.

    with RecordedDisk(folder) as disk:
        ... run something below disk.root, disk.mark(n) when it has promised something ...
    log = disk.block_log()

Everything is made below `folder`, which should be in memory (`memory_folder`): the recorder's log
and the images made of it are written and thrown away by the hundred.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.crash.disks.mounts import Stack, attach_loop, mount, unmount
from tests.crash.power_cuts.block_log import BlockLog
from tests.tools import tool

DISK_BYTES = 48 << 20
_RECORDER = Path(__file__).with_name("recorder.py")
_FALSE = Path(__file__).with_name("false_recorders.py")
_END_S = 20.0


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder of our own, in memory where the system has such a place; gone afterwards."""
    shared = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="aerobee-", dir=shared if shared.is_dir() else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


#: Layouts of ext4. With extents, reserved blocks read as zeros until a sync has covered what was
#: written to them: a torn record ends in zeros. In ext3's layout blocks are reserved by writing
#: zeros, so that any part of any unsynced record may stand there after a power cut.
LAYOUTS: dict[str, tuple[str, ...]] = {
    "ext4": ("-b", "4096"),
    "ext4-1k": ("-b", "1024"),
    "ext3": ("-b", "4096", "-O", "^extent,^64bit"),
    "no-journal": ("-b", "4096", "-O", "^has_journal"),
}


def make_file_system(image: Path, layout: str, size: int = DISK_BYTES) -> Path:
    """An empty ext4 in a file. Tables are written out now, not by the kernel later on."""
    with image.open("wb") as file:
        file.truncate(size)
    options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
    command = [tool("mkfs.ext4"), "-q", "-m", "0", *LAYOUTS[layout], "-E", options, str(image)]
    subprocess.run(command, check=True, capture_output=True)
    return image


class RecordedDisk:
    """`root` is where the file system is mounted, unless `mounted` is off. `image` may be any ext4
    image. `program` names a recorder that lies (`false_recorders.py`)."""

    def __init__(
        self,
        folder: Path,
        image: Path,
        sync_delay_ms: int = 0,
        *,
        mounted: bool = True,
        program: str = "",
        options: str = "",
    ) -> None:
        self.root = folder / "root"
        self.log_path = folder / "log"
        self.image = image
        self._served = folder / "recorder"
        self.file = self._served / "disk"
        self._program = [str(_FALSE), program] if program else [str(_RECORDER)]
        self._mounted = mounted
        self._options = options
        self._delay_ms = sync_delay_ms
        self._stack = Stack()
        self._commands = 0
        self._device = ""
        self._recorder: subprocess.Popen[str] | None = None

    def __enter__(self) -> RecordedDisk:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.root.mkdir(exist_ok=True)
        self._served.mkdir(exist_ok=True)
        size = str(self.image.stat().st_size)
        command = [sys.executable, *self._program, str(self._served), str(self.log_path), size]
        self._recorder = subprocess.Popen(
            [*command, str(self._delay_ms), str(self.image)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # it has to outlive an interrupted test's clean-up
        )
        self._stack.add(self._end_recorder)
        assert self._recorder.stdout is not None
        assert self._recorder.stdout.readline() == "mounted\n", "the recorder did not start"
        self._stack.add(lambda: unmount(self._served))
        if self._mounted:
            self._device, keep = attach_loop(self.file)
            try:
                mount(self._device, self.root, "ext4", self._options)
            finally:
                os.close(keep)
            self._stack.add(self.unmount)

    def close(self) -> None:
        """Take everything down: file system, loop device (with it), recorder."""
        self._stack.close()

    def _end_recorder(self) -> None:
        """It ends by itself when its directory is unmounted; its log is whole then."""
        assert self._recorder is not None
        try:
            self._recorder.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._recorder.kill()
            self._recorder.wait()
            raise
        finally:
            if self._recorder.stdout is not None:
                self._recorder.stdout.close()

    def unmount(self) -> None:
        """Unmount the file system, if it is still there."""
        if self.root.is_mount():
            unmount(self.root)

    def content(self) -> bytes:
        """The disk's bytes; only when it is not mounted, or the kernel would have more."""
        assert not self.root.is_mount()
        return self.file.read_bytes()

    def remount(self) -> None:
        """Unmount and mount the file system, as an administrator would after an error."""
        device, keep = self._device, os.open(self._device, os.O_RDWR | os.O_CLOEXEC)
        try:
            unmount(self.root)
            mount(device, self.root, "ext4", self._options)
        finally:
            os.close(keep)

    def mark(self, number: int) -> None:
        """Enter `number` into the log, behind every write that has reached the disk."""
        self._say(f"mark_{number}")

    def fail_writes(self, start: int = 0, end: int = 1 << 62) -> None:
        """From now on writes that touch bytes [start, end) of the disk fail with EIO."""
        self._say(f"failon_{self._next()}_{start}_{end}")

    def fail_syncs(self) -> None:
        """From now on the disk's own sync fails with EIO."""
        self._say(f"failsync_{self._next()}")

    def heal(self) -> None:
        """Nothing fails any more."""
        self._say(f"failoff_{self._next()}")

    def block_log(self) -> BlockLog:
        """The recorded log, once the disk is closed."""
        return BlockLog.read(self.image, self.log_path)

    def _next(self) -> int:
        self._commands += 1
        return self._commands

    def _say(self, name: str) -> None:
        assert not os.path.exists(self._served / name)
