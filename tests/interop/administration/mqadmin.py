"""mqadmin for the tests: one JVM that runs its commands, and its output as named fields.

The output is text for people. `fields_of` makes it comparable: a table has a field for each cell,
`ROW.COLUMN`; a JSON text one for each leaf; a line `name: value` is one field; and what is left are
numbered lines. Rows are named by their leading cells, so that one row more is one difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from tests.interop.kit import CACHE, HERE
from tests.interop.peers import JAVA_FLAGS
from tests.interop.processes import Dialogue

_LOGBACK = "<configuration><root level='OFF'/></configuration>"
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command; `files` are those that it wrote, by the name it gave them."""

    out: str
    err: str
    files: dict[str, str]


class AdminPeer:
    """mqadmin of rocketmq-tools, and Java clients for it to look at (java/admin/AdminPeer.java)."""

    def __init__(self, folder: Path, name_server: str) -> None:
        self.folder = folder
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "logback_tools.xml").write_text(_LOGBACK)
        jars = f"{CACHE}/java/client-4.9.8/*"
        source = str(HERE / "java" / "admin" / "AdminPeer.java")
        argv = [
            "env", "-C", str(folder), "java", *JAVA_FLAGS, f"-Duser.home={folder}",
            "-Duser.timezone=UTC", f"-Drocketmq.namesrv.addr={name_server}",
            f"-Drocketmq.home.dir={folder}", "-cp", jars, source,
        ]  # fmt: skip
        self._dialogue = Dialogue(argv, folder / "mqadmin.log", start_s=_TIMEOUT_S)

    def ask(self, *words: object) -> dict[str, str]:
        answer = self._dialogue.ask("\t".join(quote_plus(str(w)) for w in words), _TIMEOUT_S)
        assert "error" not in answer, f"{words}: {answer['error']}"
        return answer

    def run(self, *words: str, lines: int = 0) -> Output:
        """Run one command; after `lines` lines of output it is interrupted."""
        before = self._files()
        said = self.ask("run", lines, *words)
        made = self._files() - before
        files = {str(path.relative_to(self.folder)): path.read_text() for path in sorted(made)}
        for path in made:
            path.unlink()
        return Output(said["out"], said["err"], files)

    def _files(self) -> set[Path]:
        kept = ("logs", "conf")
        return {
            path
            for path in self.folder.rglob("*")
            if path.is_file()
            and path.relative_to(self.folder).parts[0] not in kept
            and path.suffix not in (".log", ".bak")
        }

    def close(self) -> None:
        self._dialogue.close()

    def end(self) -> None:
        """Ends it, whatever it is doing."""
        self._dialogue.end()


# --- output as fields

#: Columns that name the rows of their tables.
_NAMING = frozenset(
    (
        "ClusterName", "Cluster Name", "Broker Name", "BrokerName", "brokerName", "QID", "queueId",
        "Topic", "Group", "Consumer Group", "ConsumerGroup", "ProducerGroup", "ClientId",
    )
)  # fmt: skip
_NAMED = re.compile(r"^\s*([\w.](?:[^=:\[\]{}()]|:\d)*?)\s*(?: =|:)(?:\s+(.*?))?\s*$")
_RECORD = re.compile(r"^(.*?)\b(\w+) ?[\[{](\w+=.*)[\]}](.*)$")
_PAIR = re.compile(r",? *\b([\w()]+)=")
_BARE_KEY = re.compile(r"([{,]\s*)(\d+):")
_REFUSAL = re.compile(r"CODE: (-?\d+)  DESC: (.*?)(?: BROKER: .*)?$")
_MASKS = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[:,]\d{3})?", "<time>"),
        (r"\b20\d{15}\b", "<time>"),
        (r"\b20\d{12}\b", "<time>"),
        (r"\b1[5-9]\d{11}\b", "<time>"),
        (r"\b(?!7F000001002A139A55|7F0000010000)(?:[0-9A-F]{32}|[0-9A-F]{56})\b", "<unique id>"),
        (r"AdminPeer\$\$Lambda\S+@[0-9a-f]{1,8}\b", "<listener>@<hash>"),
        (r"(?<=[A-Za-z]@)[0-9a-f]{1,8}\b", "<hash>"),
        (r"MonitorService_-?\d+", "MonitorService_<hash>"),
        (r"(?<=Avg RT: )[\d.]+", "<duration>"),
        (r"(?<=[tT]imeMills=)\d+|(?<=rt=)\d+(?=ms)", "<duration>"),
    )
)


def fields_of(
    output: Output, *, own_ports: tuple[int, ...], folders: Mapping[str, str]
) -> dict[str, str]:
    """The fields that a command printed and wrote, by name. Times, ids and values of a process
    alone are masked, and so are `folders` (by path, what stands for each) and the ports of clients,
    which are all but `own_ports`."""
    fields = _Fields(own_ports, folders)
    fields.take_text(output.out)
    for name, text in output.files.items():
        fields.prefix = f"{name.rpartition('/')[2]}: "
        fields.take_text(text)
    fields.prefix = ""
    fields.take_errors(output.err)
    return fields.found


class _Fields:
    """Collects the fields of one command's output."""

    def __init__(self, own_ports: tuple[int, ...], folders: Mapping[str, str]) -> None:
        self.found: dict[str, str] = {}
        self.prefix = ""
        self._own_ports = own_ports
        self._folders = folders
        self._columns: list[str] = []

    def take_text(self, text: str) -> None:
        self._columns = []
        lines = iter(text.splitlines())
        for line in lines:
            if line == "{":
                self._take_json([line, *_until_closed(lines)])
            elif line.startswith('{"'):
                self._take_json([line])
            else:
                self._take_line(self._masked(line.rstrip()))

    def take_errors(self, text: str) -> None:
        """Take the messages of traces, without the frames."""
        for line in self._masked(text).splitlines():
            if line.startswith("\t") or not line.strip() or "/docs/faq/" in line:
                continue
            refusal = _REFUSAL.search(line)
            if refusal is None:
                self._add("error", line)
            else:
                self._add("error code", refusal[1])
                self._add("error text", refusal[2])

    def _masked(self, text: str) -> str:
        for path, mask in self._folders.items():
            text = text.replace(path, mask)
        for pattern, mask in _MASKS:
            text = pattern.sub(mask, text)
        return re.sub(r"(127\.0\.0\.1:)(\d+)", self._port, text)

    def _port(self, found: re.Match[str]) -> str:
        return found[0] if int(found[2]) in self._own_ports else found[1] + "<client>"

    def _add(self, name: str, value: str) -> None:
        """A name that comes again gets a number."""
        name = self.prefix + name
        key, again = name, 1
        while key in self.found:
            again += 1
            key = f"{name} #{again}"
        self.found[key] = value

    def _take_line(self, line: str) -> None:
        if not line:
            self._columns = []
        elif line.startswith("#") and not line.endswith("#"):
            self._columns = [name.strip() for name in re.split(r"\s*#", line[1:])]
        elif self._columns:
            self._take_row(line)
        elif (one := _NAMED.match(line)) is not None:
            self._take_value(one[1], one[2] or "")
        else:
            self._take_value("", line)

    def _take_row(self, line: str) -> None:
        cells = re.split(r"\s{2,}", line)
        if len(cells) != len(self._columns):
            cells = line.split()
        if len(cells) != len(self._columns):
            self._add(" ".join(cells), "")
            return
        row = dict(zip(self._columns, cells, strict=True))
        name = " ".join(row[column] for column in self._columns if column in _NAMING)
        self._add(f"{name} .", "")
        for column, cell in row.items():
            if column not in _NAMING:
                self._take_value(f"{name} .{column}", cell)

    def _take_value(self, name: str, value: str) -> None:
        """A record within the value is taken apart; a line without a name is its own name."""
        record = _RECORD.match(value)
        if record is None:
            self._add(*((name, value) if name else (value, "")))
            return
        before, kind, inside, behind = record.groups()
        name = f"{name or before.strip()} {kind}".strip()
        parts = _PAIR.split(inside)
        self._add(name, (before.strip() if name else "") + parts[0] + behind.strip())
        for key, part in zip(parts[1::2], parts[2::2], strict=True):
            self._add(f"{name}.{key}", part)

    def _take_json(self, lines: list[str]) -> None:
        self._take_leaves("", json.loads(_BARE_KEY.sub(r'\1"\2":', "\n".join(lines))))

    def _take_leaves(self, path: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for name in sorted(value):
                self._take_leaves(f"{path}/{name}", value[name])
        elif isinstance(value, list) and value:
            for at, one in enumerate(value):
                self._take_leaves(f"{path}/{at}", one)
        else:
            self._add(path, self._masked(json.dumps(value)))


def _until_closed(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a JSON object, which ends at the margin."""
    for line in lines:
        yield line
        if line.startswith("}"):
            return
