"""Would a start take the store? Asks the parts of a broker, which refuse before they change.

An audit looks for more than a start does, but not with the same eyes. Only if a start's own checks
pass as well may a store be called sound. Whether this user may write is not asked: who looks is
often not who runs the broker.
"""

import os

from aerobee.config.model import Settings
from aerobee.store.disk.files import Clock, Files
from aerobee.store.errors import StoreError
from aerobee.store.inspect.start_checks import check_log, check_segment_names, check_small_files
from aerobee.store.log.encoding import crc_checks
from aerobee.store.opening import LOG_SIZE_KEYS, StoreParts, make_parts
from aerobee.store.recovery.recovery import Recovery


def start_refusal(settings: Settings, files: Files, clock: Clock) -> str | None:
    """Why a start with these settings would be refused, None if it would not. Changes nothing."""
    parts = make_parts(settings, files, clock)
    try:
        _check(parts, settings)
    except StoreError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or parts.root}: {error.strerror or error}"
    finally:
        parts.close(clean=False)
    return None


def _check(parts: StoreParts, settings: Settings) -> None:
    parts.segments.paths.check()
    check_small_files(parts.files, parts.root)
    parts.segments.load(LOG_SIZE_KEYS)
    parts.queues.load()
    parts.checkpoint.load()
    if parts.index is not None:
        parts.index.load()
    if not parts.files.exists(os.path.join(parts.root, "lock")):
        clean_stop = not parts.lock.was_left_open()
        check_log(parts.segments, parts.queues, None, clean_stop=clean_stop)
        check_segment_names(parts.files, parts.segments)
        return
    Recovery(
        parts.files,
        parts.clock,
        parts.segments,
        parts.queues,
        parts.index,
        parts.checkpoint,
        parts.offsets_file,
        parts.dispatcher,
        clean_stop=not parts.lock.was_left_open(),
        same_boot=parts.lock.was_left_this_boot(),
        check_crc=crc_checks(
            verify_property_crc=settings.verify_property_crc,
            check_crc=settings.check_crc_on_recover,
        ),
        progress=None,
    ).check()
