"""Faults of the store, named by whose fault they are.

Raised while opening: `StoreInUse`, `StoreSizeMismatch`, `StoreLayoutError`, `StoreNotWritable`; by
the tools for a store at rest `NotAStore` and `NoSuchPlace` too; by backups `BackupRefused` and
`BackupDamaged`. Raised by a put: `MessageIllegal`,
`PropertiesTooLarge` (the sender's fault, nothing was changed); `StoreNotWritable`, `PageCacheBusy`,
`SegmentCreateFailed`, `LmqConsumeQueueNumExceeded` (the store cannot take it now); `StoreBroken` (a
sync or write failed: only a restart repairs it), `StoreClosed`. Every text names the finding, its
place, and the remedy for a person.
"""


class StoreError(Exception):
    """Base of everything the store raises on purpose; `remark` may be shown to a client."""

    @property
    def remark(self) -> str:
        """The text for a person, in a form that an answer can carry, because paths need not be
        UTF-8."""
        return str(self).encode(errors="backslashreplace").decode()


class StoreInUse(StoreError):
    """Another process, or this one, already has the store directory open."""


class StoreSizeMismatch(StoreError):
    """A file has another size than the settings; nothing was changed."""


class StoreLayoutError(StoreError):
    """The files do not make up one store (a segment missing, queues without a log); unchanged."""


class NotAStore(StoreError):
    """There is no store at the place that was named; nothing was changed."""


class NoSuchPlace(StoreError):
    """The log has no record at the place that was named; nothing was changed."""


class BackupRefused(StoreError):
    """A backup cannot be made, or restored, at the place that was named; a backup that was there
    is as it was."""


class BackupDamaged(StoreError):
    """A file of a backup is not as it was written."""


class StoreNotWritable(StoreError):
    """The directory or disk does not take writes now; reads go on."""


class MessageIllegal(StoreError):
    """The message breaks a limit of the format or of the settings."""


class PropertiesTooLarge(StoreError):
    """The stored properties are longer than 32,767 bytes."""


class PageCacheBusy(StoreError):
    """An append has been holding the put lock for too long."""


class SegmentCreateFailed(StoreError):
    """The next commit log segment could not be made (in time)."""


class LmqConsumeQueueNumExceeded(StoreError):
    """The limit of light queues is reached, and the message would need another one."""


class StoreBroken(StoreError):
    """A sync or write failed. Memory and disk may differ now, so only a restart repairs it."""


class StoreClosed(StoreError):
    """The store is closed or closing."""
