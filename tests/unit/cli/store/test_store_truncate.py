"""`aerobee store truncate`: says what would go; does it only with --yes."""

from pathlib import Path

import pytest

from tests.unit.cli.store_support import store, store_process
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import log_segment, tree


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("truncate") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def test_without_yes_it_says_what_would_go_and_changes_nothing(root: Path) -> None:
    before = tree(root, ".")
    place = at.records(root)[96].log_offset
    done = store_process("truncate", root, "--at", str(place))
    assert done.code == 0
    assert done.out.startswith(f"10 records, 1.7 KiB from log offset {place} to 17910 would go")
    assert "Orders        10" in done.out
    assert "Orders/2 would end before message 30" in done.out
    assert "1 offsets of groups would be set back" in done.out
    assert done.out.splitlines()[-1] == "nothing was changed; --yes does it"
    assert tree(root, ".") == before


def test_with_yes_it_is_done_and_what_was_cut_is_kept(root: Path) -> None:
    place = at.records(root)[96].log_offset
    done = store_process("truncate", root, "--at", str(place), "--yes")
    assert done.code == 0
    assert "what was cut is in lost+found-" in done.out
    assert at.log_end(root) == place
    assert store("verify", root).out.splitlines()[-1] == f"{root} is SOUND"
    assert "nothing to cut" in store("truncate", root, "--at", str(place)).out


def test_a_time_is_a_place(root: Path) -> None:
    report = store("truncate", root, "--after-time", "1700000150000", "--json").json
    assert (report["done"], report["records"], report["topics"]) == (False, 2, {"Orders": 2})
    report = store("truncate", root, "--after-time", "1700000150000", "--yes", "--json").json
    assert report["done"]
    assert report["queues"] == [
        {"topic": "Orders", "queue": 1, "end": 33},
        {"topic": "Orders", "queue": 2, "end": 33},
    ]
    assert Path(report["aside"]).is_dir()


def test_what_is_no_place_exits_3_and_names_the_nearest(root: Path) -> None:
    one, following = at.records(root)[50:52]
    code, _, err = store("truncate", root, "--at", str(one.log_offset + 1), "--yes")
    assert code == 3
    assert f"the nearest places are {one.log_offset} and {following.log_offset}" in err


def test_wrong_usage_exits_2(root: Path) -> None:
    assert store("truncate", root).code == 2
    assert store("truncate", root, "--at", "-5").code == 2
    assert store("truncate", root, "--at", "5", "--after-time", "5").code == 2
    assert store("truncate", root, "--after-time", "yesterday").code == 2


def test_a_store_that_is_not_whole_exits_3(root: Path) -> None:
    log_segment(root, 4096).unlink()
    code, _, err = store("truncate", root, "--at", "0", "--yes")
    assert code == 3
    assert "4096" in err
