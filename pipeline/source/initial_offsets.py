"""Where a stream began, kept outside the process until its first batch is done.

Spark asks for the initial offset again until batch 0 is committed, also after a crash, while the
end planned for batch 0 stays as it was. `latest`, or a time, resolved a second time would begin
further on and skip messages for good. So what was resolved is stored before Spark hears of it, and
read back by the next start; once a start shows that batch 0 is done, it is dropped.

    GroupInitialOffsets   offsets of the group `<consumerGroup>-start` at the brokers, each one
                          higher than meant: brokers answer 0 for what they have nothing of;
                          where that name would be too long, a cut one with a hash
    FileInitialOffsets    a JSON file (option startStateLocation), where nothing may be written to
                          the brokers

Without a group and a file nothing is kept; `StreamPlan` refuses a start beyond the planned end
instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from aerobee.file_replacement import replace_file
from aerobee.pipeline.brokers.brokers import Brokers
from aerobee.pipeline.brokers.offsets import Offsets, Queue, from_json, to_json
from aerobee.pipeline.brokers.queue_offsets import group_offsets, store_group_offsets
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.source.source_options import SourceOptions
from aerobee.protocol.names import MAX_GROUP_CHARS, START_GROUP_SUFFIX


class InitialOffsets(Protocol):
    """Initial offsets in a place that outlives the process."""

    #: For messages.
    where: str

    def load(self, queues: Sequence[Queue]) -> Offsets:
        """The kept offsets of these queues."""

    def store(self, offsets: Mapping[Queue, int]) -> None:
        """Keep them; returns when they are stored."""

    def drop(self, queues: Sequence[Queue]) -> None:
        """Forget them; nothing happens if nothing is kept."""


def initial_offsets_of(options: SourceOptions, brokers: Brokers) -> InitialOffsets | None:
    """The place that the options name; None keeps nothing."""
    if options.start_state_location is not None:
        return FileInitialOffsets(options.start_state_location)
    if options.has_group:
        return GroupInitialOffsets(brokers, start_group(options.group))
    return None


def start_group(group: str) -> str:
    """The group that keeps where a stream of `group` began. A long name is cut, with a hash of all
    of it, so that with the suffix it is still one."""
    room = MAX_GROUP_CHARS - len(START_GROUP_SUFFIX)
    if len(group) > room:
        digest = hashlib.sha256(group.encode()).hexdigest()[:32]
        group = f"{group[: room - 1 - len(digest)]}_{digest}"
    return group + START_GROUP_SUFFIX


class GroupInitialOffsets:
    """Keeps offsets at the brokers, as those of a group that nobody consumes with."""

    def __init__(self, brokers: Brokers, group: str) -> None:
        self._brokers = brokers
        self._group = group
        self.where = f"group {group}"

    def load(self, queues: Sequence[Queue]) -> Offsets:
        stored = group_offsets(self._brokers, self._group, queues)
        return {queue: offset - 1 for queue, offset in stored.items() if offset > 0}

    def store(self, offsets: Mapping[Queue, int]) -> None:
        raised = {queue: offset + 1 for queue, offset in offsets.items()}
        store_group_offsets(self._brokers, self._group, raised)

    def drop(self, queues: Sequence[Queue]) -> None:
        kept = self.load(queues)
        store_group_offsets(self._brokers, self._group, dict.fromkeys(kept, 0))


class FileInitialOffsets:
    """Keeps offsets in a file, replaced as a whole and synced with its directory."""

    def __init__(self, location: str) -> None:
        if "://" in location.removeprefix("file://"):
            raise OptionError(f"option startStateLocation must be a file here, found {location!r}")
        self._path = Path(location.removeprefix("file://").removeprefix("file:"))
        self.where = str(self._path)

    def load(self, queues: Sequence[Queue]) -> Offsets:
        try:
            kept = from_json(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise OptionError(
                f"option startStateLocation: {self._path} does not hold offsets: {error}; delete "
                "it if the stream is to start anew"
            ) from error
        return {queue: offset for queue, offset in kept.items() if queue in set(queues)}

    def store(self, offsets: Mapping[Queue, int]) -> None:
        replace_file(self._path, json.dumps(to_json(offsets)).encode())

    def drop(self, queues: Sequence[Queue]) -> None:
        self._path.unlink(missing_ok=True)
