"""Each container that can grow has a line in `config/bounds/growth.py` that says what bounds it.
Each limit that is named there has a row in docs/limits.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from aerobee.config.bounds.client_limits import CLIENT
from aerobee.config.bounds.growth import BOUNDED, OTHERS
from aerobee.config.bounds.memory import worst_cases
from aerobee.config.model import Settings
from tests.containers import ROOT, found

FOLDERS = ("access", "broker", "client", "nameserver", "native", "remoting", "shards", "store")
#: Tools for a store at rest, and what a start makes of it: gone when they are done.
_AT_REST = tuple(f"store/{name}/" for name in ("at_rest", "inspect", "recovery", "log/scan"))
#: Values and rules: only what its functions remember outlives a request.
_PURE = "protocol"


def _there() -> set[tuple[str, str]]:
    """Module and name of each container in the code."""
    modules = [path for folder in (*FOLDERS, _PURE) for path in (ROOT / folder).rglob("*.py*")]
    names = set()
    for path in modules:
        module = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".pyx") and not module.startswith(_AT_REST):
            is_pure = module.startswith(_PURE)
            names |= {(module, name) for name in found(path) if not is_pure or "." not in name}
    return names


def _declared() -> Counter[tuple[str, str]]:
    return Counter(
        (module, name)
        for table in (BOUNDED, OTHERS)
        for modules in table.values()
        for module, names in modules.items()
        for name in names.split()
    )


def test_every_container_says_what_bounds_it() -> None:
    silent = sorted(_there() - set(_declared()))
    assert silent == [], "add each to a line of config/bounds/growth.py, whose text says how"


def test_no_line_is_about_a_container_that_is_not_there() -> None:
    assert sorted(set(_declared()) - _there()) == []


def test_each_is_declared_once() -> None:
    assert {name: times for name, times in _declared().items() if times > 1} == {}


def test_every_limit_that_is_named_has_a_row_in_the_page() -> None:
    rows = {case.name for case in worst_cases(Settings())} | {row.name for row in CLIENT}
    assert set(BOUNDED) - rows == set()


# --- the reader -----------------------------------------------------------------------------------


def _names(tmp_path: Path, text: str, suffix: str = ".py") -> set[str]:
    path = tmp_path / f"module{suffix}"
    path.write_text(dedent(text))
    return found(path)


@pytest.mark.parametrize(
    "statement",
    [
        "self.kept = {}",
        "self.kept: Table = {}",
        "self.kept: deque[int] = deque()",
        "self.kept: dict[str, int] | None = None",
        'self.kept: "set[str]" = given',
        "self.kept = [one for one in given]",
        "self.kept = dict.fromkeys(given)",
        "self.kept = collections.Counter(given)",
        "self.kept = given or []",
        "self.kept = [] if given else [1]",
        "self.kept = [0] * 8",
        "self.kept, self.number = set(), 1",
        "self.kept = asyncio.Queue()",
        "self.kept = weakref.WeakValueDictionary()",
        "self.kept = bytearray(8)",
        "self.kept = given.load()\n        self.kept[1] = 2",
        "self.kept = given.load()\n        one = self.kept[1] = 2",
        "self.kept = given.load()\n        self.kept.setdefault(1, 2)",
        "self.kept = given.load()\n        heapq.heappush(self.kept, 2)",
    ],
)
def test_the_reader_finds_what_an_object_keeps(tmp_path: Path, statement: str) -> None:
    text = f"class Owner:\n    def __init__(self, given):\n        {statement}\n"
    assert _names(tmp_path, text) == {"Owner.kept"}


def test_the_reader_finds_fields_tables_of_modules_and_what_functions_remember(
    tmp_path: Path,
) -> None:
    text = """\
        NAMES: Final = {"a": 1}
        KNOWN = {}
        seen: set[str] = set()

        @dataclass
        class Value:
            number: int
            rows: list[int] = field(default_factory=list)
            more: Rows = field(default_factory=dict)

            class Inner:
                def set(self):
                    self.late = []

        @lru_cache(maxsize=8)
        def remembered(text):
            local = []
            return local
        """
    kept = {"KNOWN", "seen", "Value.rows", "Value.more", "Value.Inner.late", "remembered()"}
    assert _names(tmp_path, text) == kept


def test_the_reader_leaves_alone_what_keeps_nothing(tmp_path: Path) -> None:
    text = """\
        NAMES = {"a": 1}
        NONE: Final[Mapping[str, int]] = {}

        class Owner:
            __slots__ = ("number",)

            def __init__(self, given):
                self.number = 1
                self.given = given
                self.view = memoryview(b"")
                self.pair = (1, 2)
                mine = []
                mine.append(1)
                given.kept = []
        """
    assert _names(tmp_path, text) == set()


def test_the_reader_finds_what_compiled_classes_keep(tmp_path: Path) -> None:
    text = """\
        cdef class Owner:
            cdef dict _known
            cdef public list first, second
            cdef object later
            cdef int number

            def __init__(self):
                self.later = deque()
                self.number = 1
                self.one, self.two = [], deque()
                self.pair = self.more, self.mine = given, {}

        cdef int free(object given):
            cdef list local = []
            return 1
        """
    kept = {"Owner._known", "Owner.first", "Owner.second", "Owner.later"}
    kept |= {"Owner.one", "Owner.two", "Owner.mine"}
    assert _names(tmp_path, text, ".pyx") == kept
