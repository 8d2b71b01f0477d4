"""docs/compatibility.md says what is so: its codes, their states, its tests and its clients.

What 4.9.8 knows is listed here once more, by who answers it, so that no row can be forgotten. What
this version serves is asked of a broker and its name server over real sockets. Every check is a
function from the page's text to what is wrong in it, so that wrong pages can be tried, too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import aerobee.testing
from aerobee.broker.routing.unsupported import FEATURES
from aerobee.protocol.codes import RequestCode, ResponseCode
from tests.contract.conftest import Wire

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "compatibility.md"

BROKER, NAME_SERVER = "Requests to a broker", "Requests to a name server"
CLIENT = "Requests of a broker to its clients"
FEATURE, FILES = "Features of clients", "Settings and files"

#: The codes of 4.9.8 by who answers them. 54 and 301 are known by name, and to no broker of 4.9.8.
OF_NOBODY = {13, 22, 23, 27, 54, 209, 210, 211, 212, 213, 214, 301, 302}
CODES: Mapping[str, set[int]] = {
    BROKER: OF_NOBODY
    | {*range(10, 13), 14, 15, 17, 21, 25, 26, *range(28, 39), *range(41, 44), 45, 46}
    | {*range(50, 54), *range(200, 205), 207, 208, 215, 222, 223, 300, 303, *range(305, 311)}
    | {*range(314, 318), 320, 321, *range(323, 326), 328, 329},
    NAME_SERVER: {*range(100, 107), 205, 206, 216, 219, 224, 304, *range(311, 314)}
    | {318, 319, 322, 327},
    # The broker passes 307 and 309 on, so they stand in its own table, too.
    CLIENT: {39, 40, 220, 221, 307, 309, 326},
}

CLIENTS = {
    *("all", "Javas", "Java", "Java 4.4", "Java 5.5", "Go", "C++", "Node", "Rust", "ours", "Spark"),
    "mqadmin",
}
NO_CLIENT = {"frames", "-"}
_REFUSED, _NO_EFFECT, _NOBODY = "refused: ", "no effect: ", "nobody's"
UNNAMED = "nothing that broker/routing/unsupported.py names"
_CITED = re.compile(r"`(?P<file>[^`:]+)::(?P<test>\w+)(?P<id>\[[^`]+\])?`")


class Row(NamedTuple):
    """A line of a table; `code` is None in those of features and files."""

    code: int | None
    name: str
    state: str
    clients: list[str]
    tests: str

    @property
    def served(self) -> bool:
        return self.state == "served"


def rows_of(text: str, section: str) -> list[Row]:
    """The rows of a section's tables."""
    rows = []
    for line in _section(text, section).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {"-"} or cells[-1] == "tests":
            continue
        code = int(cells.pop(0)) if section in CODES else None
        name, state, clients, tests = cells
        rows.append(Row(code, name, state, clients.split(", "), tests))
    return rows


def _section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


# --- what may be wrong ----------------------------------------------------------------------------


def wrong_codes(text: str) -> list[str]:
    """Codes of 4.9.8 that are missing, stand twice, or have another name or place."""
    wrong = []
    for section, codes in CODES.items():
        found = [row.code for row in rows_of(text, section)]
        wrong += [f"{section}: {code} is missing" for code in sorted(codes - set(found))]
        wrong += [f"{section}: {code} has no place here" for code in set(found) - codes]
        wrong += [f"{section}: {code} stands twice" for code in codes if found.count(code) > 1]
        for row in rows_of(text, section):
            name = next((one.name for one in RequestCode if one == row.code), None)
            if row.name != name:
                wrong.append(f"{section}: {row.code} is {name}, not {row.name}")
    return wrong


def wrong_states(text: str, section: str, answers: Mapping[int, int]) -> list[str]:
    """Rows that say something else than what was answered, by code."""
    wrong = []
    for row in rows_of(text, section):
        assert row.code is not None
        answered = answers.get(row.code)
        if answered == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            why = _NOBODY if row.code in OF_NOBODY else _REFUSED + FEATURES.get(row.code, UNNAMED)
            right = row.state == why
        else:
            why = f"answered with code {answered}"
            right = row.served or row.state == f"{_REFUSED}code {answered}"
        if not right:
            wrong.append(f"{section}: {row.code} {row.name} is {why!r}, not {row.state!r}")
    return wrong


def wrong_calls(text: str, sent: set[str]) -> list[str]:
    """Requests to clients that are served and not sent, or the other way round."""
    wrong = []
    of_broker = {row.code: row.state for row in rows_of(text, BROKER)}
    for row in rows_of(text, CLIENT):
        assert row.code is not None
        if row.served != (row.name in sent):
            wrong.append(f"{CLIENT}: {row.code} {row.name} is {row.state!r}, and the broker is not")
        elif not row.served and row.state != _REFUSED + FEATURES.get(row.code, UNNAMED):
            wrong.append(f"{CLIENT}: {row.code} is refused for {FEATURES.get(row.code, UNNAMED)!r}")
        if row.code in of_broker and of_broker[row.code] != row.state:
            wrong.append(f"{CLIENT}: {row.code} is {row.state!r} here, and there it is not")
    return wrong


def wrong_words(text: str) -> list[str]:
    """States and clients that the page does not explain, and reasons that no refusal has."""
    reasons = {_REFUSED + feature for feature in FEATURES.values()}
    wrong = [
        f"{section}: {row.name} has no such reason: {row.state!r}"
        for section in (FEATURE, FILES)
        for row in rows_of(text, section)
        if row.state.startswith(_REFUSED)
        and row.state not in reasons
        and not re.match(rf"{_REFUSED}(code \d+$|`)", row.state)
    ]
    for section in (BROKER, NAME_SERVER, CLIENT, FEATURE, FILES):
        known = (_REFUSED,) if section in CODES else (_REFUSED, _NO_EFFECT)
        for row in rows_of(text, section):
            if not row.served and row.state != _NOBODY and not row.state.startswith(known):
                wrong.append(f"{section}: {row.name} has no such state: {row.state!r}")
            wrong += [
                f"{section}: {row.name} names no known client: {client!r}"
                for client in row.clients
                if client not in CLIENTS | NO_CLIENT
            ]
    return wrong


def wrong_tests(text: str) -> list[str]:
    """Tests that are not there, rows without the ones they need, and clients of tests without."""
    wrong = []
    for section in (BROKER, NAME_SERVER, CLIENT, FEATURE, FILES):
        for row in rows_of(text, section):
            cited = list(_CITED.finditer(row.tests))
            if row.tests != (", ".join(one[0] for one in cited) or "-"):
                wrong.append(f"{section}: {row.name}: not `file::test`: {row.tests}")
            if row.served and not cited:
                wrong.append(f"{section}: {row.name} is served, and no test proves it")
            wrong += [f"{section}: {row.name}: {what}" for one in cited if (what := _missing(one))]
            where = {one["file"].partition("/")[0] for one in cited}
            real = set(row.clients) - NO_CLIENT - {"ours"}
            if real and not where & {"interop", "spark"}:
                wrong.append(f"{section}: {row.name}: no test with {', '.join(sorted(real))}")
    return wrong


def _missing(cited: re.Match[str]) -> str | None:
    path = (TESTS / cited["file"]).resolve()
    if not path.is_relative_to(TESTS):
        return f"not below tests/: {cited['file']}"
    if not path.is_file():
        return f"no such file: {cited['file']}"
    functions = _functions(path)
    if cited["test"] not in functions or not cited["test"].startswith("test_"):
        return f"no such test: {cited[0]}"
    if cited["id"] and not functions[cited["test"]].decorator_list:
        return f"a test without parameters: {cited[0]}"
    return None


@functools.cache
def _functions(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


# --- what is so -----------------------------------------------------------------------------------


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Wire]:
    wire = await Wire.to(address)
    yield wire
    wire.caller.close()


async def answers_of(address: str, section: str) -> dict[int, int]:
    """The code of the answer to each request, none of which says what it wants."""
    async with connected(address) as wire:
        return {code: (await wire.call(code)).code for code in sorted(CODES[section])}


def names_in_broker() -> set[str]:
    """Every request code that the broker's own code names, but for those that it only refuses."""

    def names(path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                yield node.attr

    files = (path for path in (ROOT / "broker").rglob("*.py") if path.name != "unsupported.py")
    return {name for path in files for name in names(path) if name in RequestCode.__members__}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_each_code_stands_there_once(text: str) -> None:
    assert wrong_codes(text) == []


async def test_states_are_those_of_a_running_broker_and_name_server(text: str) -> None:
    with aerobee.testing.broker() as running:
        for section, address in ((BROKER, running.broker), (NAME_SERVER, running.name_server)):
            answers = await answers_of(address, section)
            assert wrong_states(text, section, answers) == []


def test_requests_to_clients_are_those_that_the_broker_sends(text: str) -> None:
    assert wrong_calls(text, names_in_broker()) == []


def test_states_and_clients_are_words_of_the_page(text: str) -> None:
    assert wrong_words(text) == []
    assert len(rows_of(text, FEATURE)) > 30
    assert len(rows_of(text, FILES)) > 8


def test_tests_that_are_named_exist(text: str) -> None:
    assert wrong_tests(text) == []


# --- a wrong page is found ------------------------------------------------------------------------

OFFSETS_TEST = (
    "contract/administration/test_offsets.py::test_a_deleted_topic_takes_its_groups_offsets_along"
)
ROW = "| 10 | SEND_MESSAGE | served | Go, C++ | `interop/clients/test_clients.py::"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("| 33 | VIEW_MESSAGE_BY_ID ", "| 34 | HEART_BEAT ", "33 is missing"),
        ("| 33 | VIEW_MESSAGE_BY_ID ", "| 34 | HEART_BEAT ", "34 stands twice"),
        ("| 33 | VIEW_MESSAGE_BY_ID ", "| 9999 | VIEW_MESSAGE_BY_ID ", "9999 has no place here"),
        ("| 33 | VIEW_MESSAGE_BY_ID ", "| 33 | VIEW_MESSAGE ", "33 is VIEW_MESSAGE_BY_ID"),
        (f"{ROW}test_", f"{ROW}test_no_", "no such test"),
        (ROW, ROW.replace("test_clients.py", "test_nothing.py"), "no such file"),
        (ROW, ROW.replace("interop/clients/test_clients.py", "../setup.py"), "not below tests/"),
        (
            ROW,
            ROW.replace("interop/clients/test_clients.py", "contract/programs/test_client.py"),
            "no such test",
        ),
        (ROW, ROW.replace("`interop", "interop"), "not `file::test`"),
        (ROW, ROW.replace("Go, C++", "Perl"), "no known client: 'Perl'"),
        (ROW, ROW.replace("served", "works"), "no such state: 'works'"),
        ("| batches | served ", "| batches | refused: no time ", "no such reason"),
        ("| 35 | UNREGISTER_CLIENT | served | frames ", "| 35 | X | served | Java ", "with Java"),
        ("_who_joins_and_leaves` |", "_who_joins_and_leaves[json]` |", "a test without parameters"),
        (f"`{OFFSETS_TEST}`", "-", "no test proves it"),
    ],
)
def test_a_wrong_row_is_found(text: str, old: str, new: str, said: str) -> None:
    assert old in text
    wrong = text.replace(old, new, 1)
    found = wrong_codes(wrong) + wrong_words(wrong) + wrong_tests(wrong)
    assert any(said in one for one in found), found


SERVED, REFUSED, FORBIDDEN = 0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("state", "answer", "right"),
    [
        ("served", SERVED, True),
        ("served", ResponseCode.SYSTEM_ERROR, True),
        ("served", REFUSED, False),
        ("refused: batteries", REFUSED, True),
        ("refused: engines", REFUSED, False),
        ("refused: batteries", SERVED, False),
        ("refused: code 16", FORBIDDEN, True),
        ("refused: code 16", SERVED, False),
        ("nobody's", REFUSED, False),
        ("nobody's", SERVED, False),
    ],
)
def test_a_state_is_compared_with_the_answer(
    state: str, answer: int, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEATURES, RequestCode.SEND_MESSAGE, "batteries")
    page = f"\n## {BROKER}\n\n| 10 | SEND_MESSAGE | {state} | - | - |\n"
    assert (wrong_states(page, BROKER, {10: answer}) == []) is right


@pytest.mark.parametrize(
    ("state", "answer", "right"),
    [("nobody's", REFUSED, True), ("refused: batteries", REFUSED, False), ("served", SERVED, True)],
)
def test_what_nobody_answers_is_no_refusal_of_ours(state: str, answer: int, right: bool) -> None:
    page = f"\n## {BROKER}\n\n| 13 | QUERY_BROKER_OFFSET | {state} | - | - |\n"
    assert (wrong_states(page, BROKER, {13: answer}) == []) is right


@pytest.mark.parametrize(
    ("state", "there", "sent", "right"),
    [
        ("served", "served", True, True),
        ("served", "served", False, False),
        ("refused: batteries", "refused: batteries", False, True),
        ("refused: engines", "refused: engines", False, False),
        ("refused: batteries", "refused: batteries", True, False),
        ("served", "refused: batteries", True, False),
    ],
)
def test_a_call_is_compared_with_the_broker(
    state: str, there: str, sent: bool, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEATURES, RequestCode.GET_CONSUMER_RUNNING_INFO, "batteries")
    name = "GET_CONSUMER_RUNNING_INFO"
    page = f"\n## {BROKER}\n\n| 307 | {name} | {there} | - | - |\n"
    page += f"\n## {CLIENT}\n\n| 307 | {name} | {state} | - | - |\n"
    assert (wrong_calls(page, {name} if sent else set()) == []) is right


def test_names_in_the_broker_are_those_it_sends_and_serves() -> None:
    names = names_in_broker()
    assert {"NOTIFY_CONSUMER_IDS_CHANGED", "SEND_MESSAGE"} <= names
    assert "POP_MESSAGE" not in names
