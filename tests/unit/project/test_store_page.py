"""docs/store.md names modules and tests; here they are held to be there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "store.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| RocketMQ")
]
CODE = re.compile(r"`([\w/]+\.py)`")


def test_page_has_rows() -> None:
    assert len(ROWS) > 35
    assert all(len(row) == 3 for row in ROWS)


def test_modules_named_are_there() -> None:
    for row in ROWS:
        for name in CODE.findall(row[1]):
            assert (ROOT / "store" / name).exists() or (ROOT / name).exists(), f"{row[0]}: {name}"


def test_tests_named_are_there() -> None:
    for row in ROWS:
        (name,) = CODE.findall(row[2])
        path = ROOT / "tests" / "unit" / "store" / name
        if not path.exists():
            path = ROOT / "tests" / name
        test = row[2].split()[-1]
        assert re.search(rf"def {test}\(", path.read_text()), f"{row[0]}: {name} {test}"
