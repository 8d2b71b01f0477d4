"""The layers as a test: who may import whom, how long a function may be, what is banned.

Read from the sources by their syntax trees, so that lazy imports inside functions count as well.
The sentences behind the rules are in docs/architecture.md.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Modules of aerobee/ itself that several folders share; they import nothing of ours
# (docs/decisions/0012-shared-leaves.md).
LEAVES = frozenset(
    {
        "address_list",
        "address_patterns",
        "file_replacement",
        "nearest_name",
        "printable",
        "summed_log",
    }
)

MAY_IMPORT: dict[str, frozenset[str]] = {
    "protocol": frozenset(),
    "config": frozenset({"address_list", "address_patterns", "nearest_name", "printable"}),
    "remoting": frozenset({"protocol", "summed_log"}),
    "store": frozenset({"protocol", "config"}),
    "native": frozenset({"protocol", "store", "remoting"}),
    "access": frozenset({"protocol", "address_patterns", "file_replacement", "summed_log"}),
    "nameserver": frozenset({"protocol", "config", "remoting", "access", "file_replacement"}),
    "broker": LEAVES
    | {"protocol", "config", "store", "nameserver", "remoting", "native", "access"},
    "shards": frozenset({"config", "store", "remoting", "broker", "printable"}),
    "client": frozenset({"protocol", "remoting", "address_list", "file_replacement"}),
    "pipeline": frozenset({"client", "protocol", "store", "remoting", "native"}) | LEAVES,
    "cli": LEAVES
    | {
        "native",
        "protocol",
        "config",
        "remoting",
        "store",
        "nameserver",
        "broker",
        "shards",
        "client",
    }
    | {"pipeline", "access"},
}
# `import aerobee.x` works because of the links in aerobee/; these names alone mean something else
# on a machine that has other packages of the same plain names.
FOLDERS = frozenset(MAY_IMPORT) | {"deploy"}

# Inside a folder: its floors and modules from the lowest to the highest. Each may import those
# named before it, so no circle between floors can come about.
ORDER: dict[str, tuple[str, ...]] = {
    "protocol": (
        *(
            "checksum",
            "codes",
            "errors",
            "hashing",
            "layouts",
            "names",
            "replication",
            "frames",
            "message",
            "filters",
            "bodies",
            "headers",
        ),
    ),
    "config": (
        *(
            "errors",
            "settings",
            "logs",
            "model",
            "manual",
            "bounds",
            "ports",
            "setting_rules",
            "loading",
            "tls",
        ),
    ),
    "remoting": (
        *(
            "errors",
            "connection_limits",
            "connection_stats",
            "origin",
            "peers",
            "turns",
            "sweep",
            "connections",
            "tls",
            "calling",
            "listening",
        ),
    ),
    "store": (
        *(
            "errors",
            "disk",
            "store_stats",
            "segments",
            "queues",
            "log",
            "index",
            "dispatch",
            "flush",
            "reading",
            "inspect",
            "background",
            "recovery",
            "message_store",
            "at_rest",
        ),
    ),
    "access": (
        *(
            "errors",
            "rights",
            "accounts",
            "pauses",
            "files",
            "needs",
            "administration",
            "control",
            "audit",
            "account_service",
            "explain",
        ),
    ),
    "nameserver": (*("kv", "routes", "bodies", "name_server_requests", "audited", "server"),),
    "broker": (
        *(
            "broker_stats",
            "routing",
            "background",
            "tables",
            "cluster",
            "appending",
            "second_step",
            "delay",
            "transactions",
            "messages",
            "staging",
            "requests",
            "core",
            "monitoring",
            "lifecycle",
        ),
    ),
    "shards": (
        *("shard_layout", "shard_plan", "child", "supervisor", "pages", "supervisor_process"),
    ),
    "client": (
        *(
            "errors",
            "loop_thread",
            "message",
            "assign",
            "options",
            "connections",
            "queue_offsets",
            "message_ids",
            "producing",
            "consuming",
            "admin",
            "administration",
            "blocking_roles",
            "public",
        ),
    ),
    "pipeline": (
        *(
            "workers",
            "errors",
            "argument_values",
            "decode",
            "foreign_options",
            "option_map",
            "brokers",
            "listener",
            "files",
            "sink",
            "source",
            "jobs",
            "launch",
        ),
    ),
    "cli": (
        *(
            "imports",
            "printing",
            "documents",
            "arguments",
            "configuration",
            "serve",
            "shards",
            "pipeline",
            "cluster",
            "doctor",
            "bench",
            "store",
            "main",
            "__main__",
        ),
    ),
}
# A folder that shows more wants floors, or modules that belong together put together.
ENTRIES_MAX = 15
FUNCTION_LINES_MAX = 60
# A call with more names its arguments; nobody counts to the seventh.
POSITIONAL_MAX = 5
# Called once a message or once an entry: a call more for each would cost what it runs.
HOT_LINES_MAX = 75
HOT = (
    "protocol/message/record_check.py check_fields",
    "store/reading/queue_reader.py _scan_closely",
)

# Input from clients must never become a command or code (docs/reliability.md 8).
HARDENED = ("protocol", "config", "remoting", "store", "access", "nameserver", "broker")
BANNED_MODULES = frozenset(
    {"subprocess", "pickle", "marshal", "shelve", "dill", "cloudpickle", "importlib", "runpy"}
    | {"imp", "pty", "code", "codeop", "commands", "yaml"}
)
# These read files of accounts, which administrators change by requests: its nodes, and no objects.
YAML_READERS = frozenset(
    {
        *(
            "access/files/account_nodes.py",
            "access/files/account_file.py",
            "access/files/account_change.py",
        ),
        "access/files/credentials.py",
    }
)
YAML_NAMES = frozenset(
    {"compose", "safe_dump", "SafeLoader", "YAMLError"}
    # the safe loader with libyaml's parser under the composer of nodes
    | {"CSafeLoader", "composer", "__with_libyaml__"}
    | {"Node", "ScalarNode", "MappingNode", "SequenceNode"}
    # and what the parser says before nodes are made of it
    | {"Event", "StreamEndEvent", "MappingStartEvent", "MappingEndEvent"}
    | {"SequenceStartEvent", "SequenceEndEvent"}
)
BANNED_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
BANNED_OS = ("system", "popen", "exec", "spawn", "posix_spawn", "fork")

# Protocol code does no I/O and knows no clock; the socket module is only there for inet_pton.
IMPURE = frozenset({"asyncio", "logging", "threading", "time", "os", "ssl", "select", "random"})
PURE_SOCKET = frozenset({"inet_pton", "inet_ntop", "AF_INET", "AF_INET6"})


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


OWN = sorted((ROOT / "aerobee").glob("*.py"))
ALL = [*modules(*MAY_IMPORT), *OWN]


def entries(folder: Path) -> list[Path]:
    """The modules of a folder and the folders in it, as a reader sees them; links show nothing
    new."""
    return [
        entry
        for entry in folder.iterdir()
        if (entry.suffix == ".py" and entry.name != "__init__.py")
        or (entry.is_dir() and entry.name != "__pycache__" and not entry.is_symlink())
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """(line, level, dotted name) of every import; `from a import b` gives both a and a.b."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or ""
            for alias in node.names:
                yield node.lineno, node.level, f"{node.module or ''}.{alias.name}"


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_folders_import_only_downwards(folder: str) -> None:
    allowed = {folder, "__version__"} | MAY_IMPORT[folder]
    wrong = []
    for path in modules(folder):
        for line, _, name in imports(path):
            parts = name.split(".")
            if parts[0] == "aerobee" and not {*parts[1:2]} <= allowed:
                wrong.append(f"{name_of(path)}:{line} imports {name}")
    assert wrong == []


def test_leaves_import_nothing_of_ours() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in OWN
        for line, _, name in imports(path)
        if path.stem in LEAVES and name.split(".")[0] == "aerobee"
    ]
    assert wrong == []
    assert {path.stem for path in OWN} == LEAVES | {"__init__", "testing"}


def test_the_layers_have_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        ready = {name for name, lower in MAY_IMPORT.items() if lower - LEAVES <= done} - done
        assert ready, f"a circle among {set(MAY_IMPORT) - done}"
        done |= ready


@pytest.mark.parametrize("folder", sorted(ORDER))
def test_floors_import_only_downwards(folder: str) -> None:
    height = {name: position for position, name in enumerate(ORDER[folder])}
    wrong = []
    for path in modules(folder):
        place = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        for line, _, name in imports(path):
            parts = name.split(".")
            if parts[:2] != ["aerobee", folder] or len(parts) < 3 or place == "__init__":
                continue
            if height.get(parts[2], -1) > height[place]:
                wrong.append(f"{name_of(path)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("folder", sorted(ORDER))
def test_every_floor_has_its_place_in_the_order(folder: str) -> None:
    there = {entry.name.removesuffix(".py") for entry in entries(ROOT / folder)}
    assert sorted(there - {"__init__"}) == sorted(ORDER[folder])


def packages() -> list[Path]:
    return [path.parent for path in ALL if path.name == "__init__.py"]


def test_folders_can_be_taken_in_at_a_glance() -> None:
    counts = {name_of(path): len(entries(path)) for path in packages()}
    assert {name: count for name, count in counts.items() if count > ENTRIES_MAX} == {}


def test_every_floor_says_what_lives_there() -> None:
    silent = []
    for path in packages():
        story = ast.get_docstring(tree_of(path / "__init__.py")) or ""
        if len(story.splitlines()) < 3:
            silent.append(name_of(path))
    assert silent == []


def test_nothing_of_ours_is_imported_bare_or_relatively() -> None:
    wrong = []
    for path in [*ALL, *modules("tests")]:
        for line, level, name in imports(path):
            inside_tests = path.is_relative_to(ROOT / "tests")
            if (level and not inside_tests) or (not level and name.split(".")[0] in FOLDERS):
                wrong.append(f"{name_of(path)}:{line} imports {'.' * level}{name}")
    assert wrong == []


def test_no_module_exports_what_another_defines() -> None:
    """A name is imported from where it is defined; `import x as x` is a second place for it."""
    wrong = [
        f"{name_of(path)}:{node.lineno} exports {alias.name}"
        for path in ALL
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert wrong == []


def test_only_the_command_line_knows_the_command_line() -> None:
    assert all("cli" not in lower for lower in MAY_IMPORT.values())


def test_one_module_of_the_pipeline_knows_the_compiled_form() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in modules("pipeline")
        for line, _, name in imports(path)
        if name.startswith("aerobee.native") and name_of(path) != "pipeline/decode/compiled.py"
    ]
    assert wrong == []


def test_no_code_or_command_is_made_of_data() -> None:
    wrong = []
    for path in [*modules(*HARDENED), *OWN]:
        wrong += [
            f"{name_of(path)}:{line} imports {name}"
            for line, _, name in imports(path)
            if name.split(".")[0] in BANNED_MODULES
            and not (name == "yaml" and name_of(path) in YAML_READERS)
        ]
        wrong += [
            f"{name_of(path)}:{line} calls {call}" for line, call in _banned_calls(tree_of(path))
        ]
    assert wrong == []


def test_yaml_is_read_without_making_objects_of_it() -> None:
    used = {
        (reader, node.attr)
        for reader in YAML_READERS
        for node in ast.walk(tree_of(ROOT / reader))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
    }
    assert {reader for reader, _ in used} == YAML_READERS
    assert {name for _, name in used} <= YAML_NAMES


def _banned_calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in BANNED_CALLS:
            yield node.lineno, function.id
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "os"
            and function.attr.startswith(BANNED_OS)
        ):
            yield node.lineno, f"os.{function.attr}"


def test_protocol_is_bytes_in_and_values_out() -> None:
    wrong = []
    for path in modules("protocol"):
        wrong += [
            f"{name_of(path)}:{line} imports {name}"
            for line, _, name in imports(path)
            if name.split(".")[0] in IMPURE
        ]
        wrong += [
            f"{name_of(path)}:{node.lineno} uses socket.{node.attr}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "socket"
            and node.attr not in PURE_SOCKET
        ]
    assert wrong == []


def test_the_store_knows_no_event_loop() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in modules("store")
        for line, _, name in imports(path)
        if name.split(".")[0] in ("asyncio", "uvloop", "socket")
    ]
    assert wrong == []


def test_functions_fit_a_screen() -> None:
    lengths = {
        f"{name_of(path)} {node.name}": _code_lines(node)
        for path in ALL
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    wrong = {
        name: lines
        for name, lines in lengths.items()
        if lines > (HOT_LINES_MAX if name in HOT else FUNCTION_LINES_MAX)
    }
    assert wrong == {}


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring left out: explaining is no fault."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_constructors_take_more_than_five_arguments_by_name() -> None:
    wrong = [
        f"{name_of(path)}:{method.lineno} {owner.name} takes {count} by position"
        for path in ALL
        for owner, method in _methods(path)
        if method.name == "__init__"
        if (count := len(method.args.posonlyargs + method.args.args) - 1) > POSITIONAL_MAX
    ]
    assert wrong == []


def test_no_method_is_bound_as_an_attribute_of_another_object() -> None:
    wrong = []
    for path in ALL:
        for owner, method in _methods(path):
            for node in ast.walk(method):
                targets = node.targets if isinstance(node, ast.Assign) else ()
                if any(map(_is_of_another, targets)) and _is_own_method(node.value, owner):
                    wrong.append(f"{name_of(path)}:{node.lineno}")
    assert wrong == []


def _methods(path: Path) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for owner in ast.walk(tree_of(path)):
        if isinstance(owner, ast.ClassDef):
            for method in owner.body:
                if isinstance(method, ast.FunctionDef):
                    yield owner, method


def _is_of_another(target: ast.expr) -> bool:
    """Whether an assignment goes to an attribute that is not the object's own."""
    return isinstance(target, ast.Attribute) and not _is_self(target.value)


def _is_own_method(value: ast.expr, owner: ast.ClassDef) -> bool:
    if isinstance(value, ast.Lambda):
        return True
    names = {method.name for method in owner.body if isinstance(method, ast.FunctionDef)}
    return isinstance(value, ast.Attribute) and _is_self(value.value) and value.attr in names


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


def test_every_module_opens_with_its_story() -> None:
    silent = [
        name_of(path)
        for path in ALL
        if path.name != "__init__.py" and not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


def test_every_folder_is_linked_into_the_package() -> None:
    for folder in MAY_IMPORT:
        link = ROOT / "aerobee" / folder
        assert link.is_symlink(), folder
        assert link.readlink() == Path("..") / folder
