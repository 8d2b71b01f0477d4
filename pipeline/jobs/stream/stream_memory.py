"""Keeps, beside the checkpoint of a stream, its id, its topics and its table.

    <checkpoint>/aerobee/stream-N.json    the newest one counts
    <checkpoint>/aerobee/start            the offsets that a start at latest, or at a time, meant
    <checkpoint>/aerobee/lock             held by the run that is under way (on this machine)

A checkpoint says how far its stream has got, so it belongs to one stream for ever: used for another
topic it would skip messages, used for another table it would leave out the rows of earlier
messages. Tables know the stream by the id that is made here, once.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream.job_plan import JobPlan
from aerobee.pipeline.jobs.targets.hadoop import AnyTarget

FOLDER: Final = "aerobee"
_VERSION: Final = 1
#: The name of a table whose directory holds the checkpoint: both may be moved together.
_AROUND: Final = "."


@contextmanager
def only_run(plan: JobPlan) -> Iterator[None]:
    """Holds the stream's lock. Raises JobFailed while another run on this machine has it; on other
    file systems Spark itself stops the second run at its first batch."""
    if "://" in plan.checkpoint:
        yield
        return
    folder = os.path.join(plan.checkpoint, FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise JobFailed(f"cannot write to {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobFailed(
                f"another run of the stream from {plan.route} is under way (checkpoint "
                f"{plan.checkpoint}); wait for it or stop it"
            ) from None
        yield
    finally:
        os.close(lock)


class Notes:
    """One small document of a directory, a new file for each of its versions: `NAME-0.json`, ...

    The newest one counts. A version appears whole or not at all, so a kill leaves the one before.
    """

    def __init__(self, folder: AnyTarget, within: str, name: str) -> None:
        self._folder = folder
        self._within, self._name = within, name

    def latest(self) -> dict[str, Any] | None:
        """The newest version; None without a version. Raises JobFailed if it cannot be read."""
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._path(max(numbers))
        try:
            found: dict[str, Any] = json.loads(self._folder.read(path))
        except ValueError as error:
            raise JobFailed(f"{path} cannot be read ({error}); restore it from a backup") from error
        return found

    def write(self, document: dict[str, Any]) -> bool:
        """The next version; False if somebody else made it at the same time."""
        number = max(self._numbers(), default=-1) + 1
        text = json.dumps(document, ensure_ascii=False, indent=1)
        return self._folder.write_new(self._path(number), text.encode())

    def _numbers(self) -> list[int]:
        begin, end = f"{self._name}-", ".json"
        return [
            int(name[len(begin) : -len(end)])
            for name in self._folder.names(self._within)
            if name.startswith(begin) and name.endswith(end)
        ]

    def _path(self, number: int) -> str:
        return f"{self._within}/{self._name}-{number}.json"


class Memory:
    """The memory of one stream; tables know it by its `id`."""

    def __init__(self, folder: AnyTarget, plan: JobPlan) -> None:
        self._notes = Notes(folder, FOLDER, "stream")
        kept = self._notes.latest()
        #: Nobody has begun this stream yet.
        self.is_new = kept is None
        if kept is None:
            if folder.names("offsets"):
                raise JobFailed(
                    f"checkpoint {plan.checkpoint} is of another program, no stream made by "
                    f"`aerobee pipeline stream`; name another --checkpoint for {plan.route}"
                )
            kept = {"version": _VERSION, "id": uuid.uuid4().hex, "schema": None, "tables": {}}
        else:
            check_kept(kept, plan)
        self._plan = plan
        self._kept = kept | {
            "topics": list(plan.topics), "pattern": plan.pattern, "to": _target(plan),
        }  # fmt: skip
        self.id: str = kept["id"]
        self.schema: dict[str, Any] | None = kept["schema"]

    def table(self, place: str) -> str | None:
        """The id of a table that this stream has written to; None if it never has."""
        found: str | None = self._kept["tables"].get(self._key(place))
        return found

    def keep(self, schema: Mapping[str, Any] | None, tables: Mapping[str, str]) -> None:
        """The JSON schema of bodies, and tables with their ids, from now on."""
        by_key = {self._key(place): found for place, found in tables.items()}
        self._kept |= {"schema": schema, "tables": {**self._kept["tables"], **by_key}}
        if self._notes.latest() != self._kept and not self._notes.write(self._kept):
            raise JobFailed(
                f"another run of the stream from {self._plan.route} began at the same time; "
                "nothing was written: start it again if the other one is not to go on"
            )

    def _key(self, place: str) -> str:
        own = self._plan.has_own_checkpoint and place == self._plan.table.place
        return _AROUND if own else place


def check_kept(kept: Mapping[str, Any], plan: JobPlan) -> None:
    """Raises JobFailed if the kept version is of another stream than the plan's."""
    where = f"checkpoint {plan.checkpoint}"
    if kept.get("version") != _VERSION:
        raise JobFailed(f"{where} was made by another version of Aerobee: {kept.get('version')}")
    before = set(kept["topics"])
    if kept["pattern"] != plan.pattern or not before <= set(plan.topics):
        was = ", ".join(kept["topics"]) or f"topics like {kept['pattern']}"
        raise JobFailed(
            f"{where} is of a stream from {was}, not from {plan.what}: name another --checkpoint "
            f"and another table than {plan.table.place}, or read {was} on"
        )
    if kept["to"] != _target(plan):
        before_to = kept["to"] if kept["to"] != _AROUND else "the directory around it"
        raise JobFailed(
            f"{where} is of a stream from {plan.what} to {before_to}, not to {plan.table.place}: "
            "name another --checkpoint, with which the new table begins anew"
        )


def _target(plan: JobPlan) -> str:
    return _AROUND if plan.has_own_checkpoint else plan.table.place
