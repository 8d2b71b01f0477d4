"""Opens a store directory: lock, load, recover; the running store consists of the parts made here.

The order keeps a directory safe. The lock comes before anything is read (the reference recovers
first and locks after, docs/reliability.md B14). Everything is loaded and checked before anything is
changed: a wrong size, a missing segment or a missing log raises with nothing touched. The `abort`
mark is made before the first change. Delay levels are parsed before queues are rebuilt.
"""

import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

from aerobee.config.model import Settings
from aerobee.protocol.filters.bloom import BloomFilter
from aerobee.protocol.message.record import encode_blank
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files, is_full, is_refused
from aerobee.store.disk.lock import StoreLock
from aerobee.store.disk.offsets_file import Offsets, OffsetsFile
from aerobee.store.dispatch.bit_maps import FilterBitMaps
from aerobee.store.dispatch.dispatcher import Dispatcher
from aerobee.store.dispatch.extended_dispatch import ExtendedDispatcher
from aerobee.store.errors import StoreBroken, StoreError, StoreNotWritable
from aerobee.store.index.index_service import IndexService
from aerobee.store.inspect.start_checks import check_rights, check_small_files, tables_read
from aerobee.store.log.compiled import Compiled
from aerobee.store.log.encoding import crc_checks
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.recovery.recovery import Recovery
from aerobee.store.recovery.recovery_report import Progress, RecoveryReport
from aerobee.store.segments.allocate import MakeSegment, mapped_maker
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.segments.paths import LogPaths
from aerobee.store.segments.transient_pool import TransientStorePool, pooled_maker
from aerobee.store.segments.warm_up import warm_maker
from aerobee.store.store_stats import StoreStats

log = logging.getLogger("aerobee.store")

LOG_SIZE_KEYS = "commit_log_segment_bytes (mappedFileSizeCommitLog)"


@dataclass(slots=True, kw_only=True)
class StoreParts:
    """The parts of a store below its commit log; `recovery` has the findings of the opening."""

    files: Files
    clock: Clock
    root: str
    stats: StoreStats
    levels: DelayLevels
    checkpoint: Checkpoint
    offsets_file: OffsetsFile
    segments: MappedFileQueue
    queues: ConsumeQueueTable
    index: IndexService | None
    pool: TransientStorePool | None
    make_segment: MakeSegment
    dispatcher: Dispatcher
    maps: FilterBitMaps | None
    lock: StoreLock
    recovery: RecoveryReport
    # Store time of the newest record, 0 without one.
    last_store_ms: int = 0
    # The content of the offsets file after recovery.
    offsets: Offsets | None = None

    def load(self) -> None:
        """Read the files, and refuse those that no start takes; changes nothing.

        Raises StoreLayoutError, StoreSizeMismatch or OSError.
        """
        self.segments.paths.check()
        check_small_files(self.files, self.root)
        self.segments.load(LOG_SIZE_KEYS)
        self.queues.load()
        self.checkpoint.load()
        if self.index is not None:
            self.index.load()

    def make_recovery(self, settings: Settings, progress: Progress | None = None) -> Recovery:
        """The recovery of the loaded files, before anything was changed."""
        return Recovery(
            files=self.files,
            clock=self.clock,
            segments=self.segments,
            queues=self.queues,
            index=self.index,
            checkpoint=self.checkpoint,
            offsets_file=self.offsets_file,
            dispatcher=self.dispatcher,
            clean_stop=not self.lock.was_left_open(),
            same_boot=self.lock.was_left_this_boot(),
            check_crc=crc_checks(
                verify_property_crc=settings.verify_property_crc,
                check_crc=settings.check_crc_on_recover,
            ),
            progress=progress,
        )

    def open_files(self) -> Iterator[tuple[str, int]]:
        """The files that show whether the directory is still the store's, with descriptors."""
        yield self.lock.file
        last = self.segments.last
        if last is not None:
            yield last.path, last.descriptor

    def open_pool(self) -> None:
        """Get the memory of the transient pool, which only a store that appends needs.

        Raises StoreNotWritable without enough memory; everything is given back then.
        """
        if self.pool is not None:
            try:
                self.pool.open()
            except StoreNotWritable:
                self.close(clean=True)  # recovery has just repaired it
                raise

    def close(self, *, clean: bool) -> None:
        """Give everything back, the lock last; `clean` lets the next start trust the files."""
        try:
            if clean:
                self.lock.mark_clean()
        except OSError as error:
            log.error("closing the store path=%s error=%s", self.root, error)
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.segments.close()
        if self.pool is not None:
            self.pool.close()
        self.lock.release()


def open_parts(
    settings: Settings,
    files: Files,
    clock: Clock,
    progress: Progress | None,
    compiled: Compiled | None = None,
) -> StoreParts:
    """Lock and recover the store below `settings.store_path`; `compiled` reads plain records.

    Raises StoreInUse, StoreSizeMismatch, StoreLayoutError or StoreNotWritable, whose texts name the
    remedy; nothing was changed then. Raises StoreBroken when the disk refuses to be read or synced.
    """
    if not settings.store_path:
        # An empty path would be the directory in which the process happens to be.
        raise StoreNotWritable("store_path (storePathRootDir) is empty; name a directory")
    parts = make_parts(settings, files, clock, compiled)
    opened = False
    try:
        parts.lock.take()
        _recover(parts, settings, progress)
        opened = True
    except OSError as error:
        raise _opening_failed(parts, error) from error
    finally:
        if not opened:
            parts.close(clean=False)
    return parts


def make_parts(
    settings: Settings, files: Files, clock: Clock, compiled: Compiled | None = None
) -> StoreParts:
    """The parts by the settings, with nothing read or locked yet."""
    root = settings.store_path
    stats = StoreStats(answers_wait=settings.answers_wait)
    levels = _delay_levels(settings)
    checkpoint = Checkpoint(files, os.path.join(root, "checkpoint"))
    segment_bytes = settings.commit_log_segment_bytes
    paths = LogPaths(
        files,
        settings.commit_log_directories,
        settings.read_only_commit_log_directories,
        segment_bytes,
        settings.disk_force_ratio,
    )
    segments = MappedFileQueue(files, paths, segment_bytes)
    queues = ConsumeQueueTable(
        files,
        os.path.join(root, "consumequeue"),
        settings.consume_queue_segment_bytes,
        settings.lmq_max_queues if settings.lmq_enabled else None,
        settings.consume_queue_ext_segment_bytes if settings.consume_queue_ext_enabled else None,
    )
    index: IndexService | None = None
    if settings.index_enabled:
        index = IndexService(
            files=files,
            clock=clock,
            stats=stats,
            checkpoint=checkpoint,
            directory=os.path.join(root, "index"),
            slots=settings.index_slots,
            entries=settings.index_entries,
            compiled=compiled,
        )
    pool: TransientStorePool | None = None
    if settings.transient_pool_effective:
        pool = TransientStorePool(files, settings.transient_pool_buffers, segment_bytes)
    maps = _bit_maps(settings, segments, stats)
    return StoreParts(
        files=files,
        clock=clock,
        root=root,
        stats=stats,
        levels=levels,
        checkpoint=checkpoint,
        offsets_file=OffsetsFile(files, root),
        segments=segments,
        queues=queues,
        index=index,
        pool=pool,
        make_segment=_segment_maker(settings, files, pool),
        dispatcher=_dispatcher(settings, queues, index, levels, maps, compiled),
        maps=maps,
        lock=StoreLock(files, root),
        recovery=RecoveryReport(),
    )


def _bit_maps(
    settings: Settings, segments: MappedFileQueue, stats: StoreStats
) -> FilterBitMaps | None:
    if not (settings.filter_bitmap and settings.consume_queue_ext_enabled):
        return None
    bloom = BloomFilter(settings.filter_error_percent, settings.filter_groups)
    return FilterBitMaps(segments, bloom.map_bytes, stats)


def _dispatcher(
    settings: Settings,
    queues: ConsumeQueueTable,
    index: IndexService | None,
    levels: DelayLevels,
    maps: FilterBitMaps | None,
    compiled: Compiled | None,
) -> Dispatcher:
    multi_dispatch = settings.multi_dispatch
    if settings.consume_queue_ext_enabled:
        return ExtendedDispatcher(queues, index, levels, maps, multi_dispatch=multi_dispatch)
    return Dispatcher(queues, index, levels, multi_dispatch=multi_dispatch, compiled=compiled)


def _segment_maker(
    settings: Settings, files: Files, pool: TransientStorePool | None
) -> MakeSegment:
    size = settings.commit_log_segment_bytes
    make = mapped_maker(files, size)
    if settings.warm_segments:
        make = warm_maker(files, size, settings.warm_flush_pages if settings.sync_flush else None)
    if pool is None:
        return make
    return pooled_maker(files, pool, make, size, fail_fast=settings.transient_pool_fail_fast)


def _recover(parts: StoreParts, settings: Settings, progress: Progress | None) -> None:
    parts.load()
    tables = tables_read(parts.files, settings)
    check_rights(parts.files, parts.root, parts.segments, parts.queues, parts.index, tables)
    recovery = parts.make_recovery(settings, progress)
    recovery.check()
    parts.lock.mark_open()
    for directory in (*parts.segments.paths.writable, parts.queues.directory):
        for changed in parts.files.make_directories(directory):
            parts.files.sync_directory(changed)
    parts.queues.remove_leftovers()
    parts.recovery = recovery.run()
    parts.last_store_ms = recovery.last_store_ms
    parts.offsets = recovery.offsets
    _leave_read_only(parts)


def _leave_read_only(parts: StoreParts) -> None:
    """If the log ends in a read-only directory, end that segment: the next one is elsewhere."""
    last = parts.segments.last
    if last is None or last.wrote == last.size or not parts.segments.paths.is_read_only(last.path):
        return
    try:
        last.finish_unopened(encode_blank(last.size - last.wrote))
    except OSError as error:
        if not is_refused(error):
            raise
        raise StoreNotWritable(
            f"the log ends in {last.path}, which is in a read-only directory. To go on elsewhere 8 "
            f"bytes have to be written there, to end it, which failed: {error.strerror}. Make it "
            "writable for this start, or take the directory out of read_only_commit_log_paths."
        ) from error
    log.info("last segment ended, its directory is read-only path=%s", last.path)
    parts.recovery.log_end = last.end


def _delay_levels(settings: Settings) -> DelayLevels:
    try:
        return DelayLevels(settings.message_delay_levels)
    except ValueError as error:
        raise StoreNotWritable(f"message_delay_levels (messageDelayLevel): {error}") from error


def _opening_failed(parts: StoreParts, error: OSError) -> StoreError:
    root = parts.root
    where = error.filename or root
    if isinstance(error, NotADirectoryError):
        return StoreNotWritable(f"{where} is a file, a directory is needed")
    if isinstance(error, IsADirectoryError):
        return StoreNotWritable(f"{where} is a directory, a file is needed; move it away")
    if isinstance(error, FileExistsError) and parts.files.exists(where):
        return StoreNotWritable(f"{where} is a file, a directory is needed")
    if isinstance(error, FileNotFoundError) and not parts.files.exists(root):
        # It would have been made if its file system took directories.
        return StoreNotWritable(f"{where} cannot be made: {error.strerror}; name another directory")
    if isinstance(error, FileExistsError | FileNotFoundError):
        return StoreNotWritable(
            f"{where} is not there, or a link to nothing. Is its volume not mounted?"
        )
    if error.errno == errno.EROFS:
        return StoreNotWritable(
            f"{where} cannot be written: {error.strerror}. Linux makes a file system read-only "
            f"after an error of its disk: look at the kernel's log and at the mount of {root}, "
            "mend the disk, and mount it anew."
        )
    if is_refused(error):
        return StoreNotWritable(
            f"{where} cannot be written: {error.strerror}. The store needs a directory that "
            f"belongs to the user it runs as; look at the owner and mode of {root}."
        )
    if is_full(error):
        return StoreNotWritable(f"the disk is full: {where}: {error.strerror}")
    return StoreBroken(f"the store at {root} cannot be opened: {error}")
