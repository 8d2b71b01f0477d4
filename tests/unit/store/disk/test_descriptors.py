"""The bounded number of open queue files, and the two threads that sync them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files

SIZE = 400


class SlowSyncs(Files):
    """Within the first sync `meanwhile` happens; the next one waits for `go_on`."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def data_sync(self, fd: int) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        else:
            self.inside.set()
            assert self.go_on.wait(10)
        super().data_sync(fd)


def test_a_file_that_two_threads_sync_is_closed_when_both_have_done(tmp_path: Path) -> None:
    """The store's caller had chosen it to go before the flush thread came to it: the descriptor was
    closed under the flush thread, whose EBADF stopped the store, or which synced another file."""
    failed: list[OSError] = []

    def flush() -> None:
        try:
            cache.sync(first)
        except OSError as error:
            failed.append(error)

    flush_thread = threading.Thread(target=flush)

    def flushed_meanwhile() -> None:
        flush_thread.start()
        assert files.inside.wait(10)

    files = SlowSyncs(flushed_meanwhile)
    cache = DescriptorCache(files, 1)
    first, second = (QueueFile(str(tmp_path), number * SIZE, SIZE) for number in (0, 1))
    cache.create(first, SIZE)
    cache.wrote(first, 20)
    first.used = False
    cache.create(second, SIZE)  # there is room for one
    still_open = first.fd >= 0
    files.go_on.set()
    flush_thread.join()
    assert still_open
    assert failed == []
    assert first.writes == first.synced_writes
    cache.close()
    assert first.fd < 0
