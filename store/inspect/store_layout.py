"""Lists the content of a store directory, by names and lengths only, and their faults.

A start reads the same directories, strictly: it refuses a store at the first thing that does not
fit. Here everything is listed, fitting or not, so that all faults can be reported at once, and the
rest can still be read.
"""

import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.store.disk.files import Files
from aerobee.store.errors import NotAStore
from aerobee.store.inspect.audit_report import Findings
from aerobee.store.inspect.start_checks import SMALL_FILES
from aerobee.store.queues.queue_table import REMOVED_SUFFIX

_SEGMENT_NAME = re.compile(r"[0-9]{20}", re.ASCII)
_INDEX_NAME = re.compile(r"[0-9]{17}", re.ASCII)
# One of these in a directory makes it a store.
_SIGNS = ("commitlog", "consumequeue", "index", "checkpoint", "offsets", "lock", "config")
_FOLDERS = ("commitlog", "consumequeue", "index", "config")
_KNOWN = frozenset(
    {*_SIGNS, *SMALL_FILES, "consumequeue_ext", "namesrv", "audit", "transaction", "kvConfig.json"}
    | {"batchconsumequeue", "timerwheel", "timerlog", "epochFileCheckpoint", "brokerIdentity"}
)
ASIDE_PREFIX = "lost+found-"
#: The directory in which a rebuild makes the files that it will put in place.
REBUILD = "rebuild"


class FoundFile(NamedTuple):
    """A file named by its beginning (0 for index files)."""

    path: str
    start: int
    size: int

    @property
    def name(self) -> str:
        """The name without the directory."""
        return os.path.basename(self.path)


class FoundQueue(NamedTuple):
    """The directory of one consume queue; its files in order, empty ones left out."""

    topic: str
    queue_id: int
    directory: str
    files: tuple[FoundFile, ...]


@dataclass
class Layout:
    """The files of one store. Segments and queue files are ordered by their start."""

    root: str
    log_directories: tuple[str, ...]
    segments: list[FoundFile] = field(default_factory=list)
    queues: list[FoundQueue] = field(default_factory=list)
    index_files: list[FoundFile] = field(default_factory=list)
    config_files: list[str] = field(default_factory=list)
    # Files without length.
    unfinished: list[FoundFile] = field(default_factory=list)
    # (path, whether RocketMQ refuses to start because of it).
    foreign: list[tuple[str, bool]] = field(default_factory=list)
    # Directories, and links to nothing, under the name of a file, and what they are.
    not_files: list[tuple[str, str]] = field(default_factory=list)
    # Files of consumequeue_ext, by (topic, queue id), and whether there is such a directory.
    extensions: list[tuple[tuple[str, int], FoundFile]] = field(default_factory=list)
    has_extensions: bool = False
    # Directories of queues whose removal was broken off.
    removed: list[str] = field(default_factory=list)
    # Second files of a start that another directory has too.
    duplicates: list[FoundFile] = field(default_factory=list)


def log_directories(settings: Settings) -> tuple[str, ...]:
    """Every directory that may hold segments, read-only directories too."""
    named = (*settings.commit_log_directories, *settings.read_only_commit_log_directories)
    return tuple(dict.fromkeys(named))


def survey(files: Files, settings: Settings) -> Layout:
    """List the store below `settings.store_path`. Raises NotAStore or OSError."""
    root = settings.store_path
    _check_root(files, root)
    layout = Layout(root, log_directories(settings))
    for name in files.names(root):
        if name in SMALL_FILES:
            _is_file(files, os.path.join(root, name), layout)
        if name not in _KNOWN and name != REBUILD and not name.startswith(ASIDE_PREFIX):
            path = os.path.join(root, name)
            if path not in layout.log_directories:
                layout.foreign.append((path, False))
    for directory in layout.log_directories:
        _list_segments(files, directory, layout)
    layout.segments.sort(key=lambda file: file.start)
    # A file without length is left over from a crash only if nothing follows it.
    last = max((file.start for file in layout.segments), default=-1)
    layout.segments += [file for file in layout.unfinished if file.start < last]
    layout.segments.sort(key=lambda file: file.start)
    layout.unfinished = [file for file in layout.unfinished if file.start > last]
    _list_queues(files, os.path.join(root, "consumequeue"), layout)
    _list_extensions(files, os.path.join(root, "consumequeue_ext"), layout)
    _list_index(files, os.path.join(root, "index"), layout)
    for name in ("config", "namesrv"):
        _list_config(files, os.path.join(root, name), layout)
    return layout


def _check_root(files: Files, root: str) -> None:
    if not files.exists(root):
        raise NotAStore(f"{root} does not exist")
    if not files.is_directory(root):
        raise NotAStore(f"{root} is a file; name the directory of a store")
    if _holds_store(files, root):
        return
    names = files.names(root)
    what = "is empty" if not names else "holds nothing that belongs to one"
    text = (
        f"{root} is not the directory of a store: it {what}. A store has commitlog, "
        "consumequeue and lock in it."
    )
    below = os.path.join(root, "store")
    if files.is_directory(below) and _holds_store(files, below):
        text += f" But its directory store is one: {below}"
    elif shards := [name for name in names if name.startswith("shard-")]:
        text += f" Its shards have one each: {os.path.join(root, min(shards))}"
    raise NotAStore(text)


def _holds_store(files: Files, root: str) -> bool:
    names = files.names(root)
    return any(_is_sign(files, root, sign) for sign in _SIGNS if sign in names)


def _is_file(files: Files, path: str, layout: Layout) -> bool:
    """Whether a path with the name of a file is a file; noted if not."""
    if files.exists(path) and not files.is_directory(path):
        return True
    what = "a directory" if files.exists(path) else "a link to nothing"
    layout.not_files.append((path, f"is {what}, a file is needed"))
    return False


def _is_sign(files: Files, root: str, name: str) -> bool:
    """Whether a name shows that its directory is a store: a folder does by its content."""
    names = files.names(os.path.join(root, name)) if name in _FOLDERS else [""]
    if name == "commitlog":
        return any(_SEGMENT_NAME.fullmatch(one) for one in names)
    return bool(names)


def _found_files(
    files: Files, directory: str, pattern: re.Pattern[str], layout: Layout
) -> Iterator[FoundFile]:
    """The files of a directory whose names fit; all others are noted."""
    for name in files.names(directory):
        path = os.path.join(directory, name)
        if pattern.fullmatch(name) is None:
            layout.foreign.append((path, pattern is _SEGMENT_NAME))
        elif _is_file(files, path, layout):
            start = int(name) if pattern is _SEGMENT_NAME else 0
            yield FoundFile(path, start, files.size_of(path))


def _list_segments(files: Files, directory: str, layout: Layout) -> None:
    known = {file.start for file in layout.segments}
    for file in _found_files(files, directory, _SEGMENT_NAME, layout):
        if not file.size:
            layout.unfinished.append(file)
        elif file.start in known:
            layout.duplicates.append(file)
        else:
            layout.segments.append(file)


def _list_queues(files: Files, directory: str, layout: Layout) -> None:
    for topic, queue_id, path in _queue_directories(files, directory, layout):
        found = _list_queue_files(files, path, layout)
        layout.queues.append(FoundQueue(topic, queue_id, path, tuple(found)))


def _list_extensions(files: Files, directory: str, layout: Layout) -> None:
    layout.has_extensions = files.is_directory(directory)
    for topic, queue_id, path in _queue_directories(files, directory, layout):
        found = _list_queue_files(files, path, layout)
        layout.extensions += [((topic, queue_id), file) for file in found]


def _queue_directories(
    files: Files, directory: str, layout: Layout
) -> Iterator[tuple[str, int, str]]:
    """(topic, queue id, path) of each queue below `directory`; all others are noted."""
    for topic in files.names(directory):
        topic_directory = os.path.join(directory, topic)
        if not files.is_directory(topic_directory):
            layout.foreign.append((topic_directory, False))
            continue
        for name in files.names(topic_directory):
            path = os.path.join(topic_directory, name)
            is_directory = files.is_directory(path)
            if name.endswith(REMOVED_SUFFIX) and is_directory:
                layout.removed.append(path)
            elif not name.isdecimal() or not name.isascii() or not is_directory:
                layout.foreign.append((path, False))
            else:
                yield topic, int(name), path


def _list_queue_files(files: Files, directory: str, layout: Layout) -> list[FoundFile]:
    found = list(_found_files(files, directory, _SEGMENT_NAME, layout))
    while found and not found[-1].size:
        layout.unfinished.append(found.pop())
    return found


def _list_index(files: Files, directory: str, layout: Layout) -> None:
    for file in _found_files(files, directory, _INDEX_NAME, layout):
        (layout.index_files if file.size else layout.unfinished).append(file)


def _list_config(files: Files, directory: str, layout: Layout) -> None:
    for name in files.names(directory):
        path = os.path.join(directory, name)
        is_table = name.removesuffix(".bak").endswith(".json")
        if _is_file(files, path, layout) if is_table else not files.is_directory(path):
            layout.config_files.append(path)


def check_segments(
    layout: Layout, segment_bytes: int, findings: Findings, misplaced: Container[str]
) -> None:
    """Check names, lengths and the run of the commit log's files.

    A file that is `misplaced` (by path) does not show that files before it are missing.
    """
    expected = layout.segments[0].start if layout.segments else 0
    for file in layout.segments:
        if file.start % segment_bytes:
            findings.add(
                "segment-start",
                file.path,
                None,
                f"begins at {file.start}, which is no multiple of {segment_bytes}",
                log_offset=file.start,
            )
        elif file.start > expected and file.path in misplaced:
            continue
        elif file.start > expected:
            findings.add(
                "segment-missing",
                os.path.join(os.path.dirname(file.path), f"{expected:020d}"),
                None,
                f"the files of log offsets {expected} to {file.start} are missing "
                f"({(file.start - expected) // segment_bytes} of {segment_bytes} bytes)",
                log_offset=expected,
            )
        if file.size != segment_bytes:
            findings.add(
                "segment-size",
                file.path,
                None,
                f"has {file.size} bytes instead of {segment_bytes}",
                log_offset=file.start,
            )
        if file.start % segment_bytes == 0:
            expected = file.start + segment_bytes
    for file in layout.duplicates:
        findings.add(
            "segment-duplicate",
            file.path,
            None,
            f"another directory has a file for log offset {file.start} as well",
            log_offset=file.start,
        )


def check_strays(files: Files, layout: Layout, findings: Findings) -> None:
    """Report files without length, foreign files, and a rebuild that was broken off."""
    rebuild = os.path.join(layout.root, REBUILD)
    if files.exists(rebuild):
        missing = [
            name
            for name in ("consumequeue", "index")
            if not files.exists(os.path.join(layout.root, name))
        ]
        kind = "rebuild-broken-off" if missing else "rebuild-left-over"
        findings.add(kind, rebuild, None, "is what a rebuild that did not end has left")
    for file in layout.unfinished:
        if os.path.dirname(file.path) in layout.log_directories:
            kind = "segment-unfinished"
        elif os.path.dirname(file.path).endswith(f"{os.sep}index"):
            kind = "index-unfinished"
        else:
            kind = "queue-file-unfinished"
        findings.add(kind, file.path, None, "has no length")
    for path, what in layout.not_files:
        findings.add("not-a-file", path, None, what)
    for path in layout.removed:
        findings.add("queue-removed", path, None, "is what is left of a queue that was deleted")
    for path, stops_rocketmq in layout.foreign:
        kind = "foreign-stops-rocketmq" if stops_rocketmq else "foreign-file"
        findings.add(kind, path, None, "is none of the store's files")
