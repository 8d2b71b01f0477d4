"""`aerobee store repair`: a plan an operator can decide on, then what was planned."""

from pathlib import Path

import pytest

from tests.unit.cli.store_support import store, store_process
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import log_segment, tree


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("repair") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def test_without_yes_the_plan_is_told_and_nothing_is_changed(root: Path) -> None:
    lost = at.of_queue(root, 1)[20]
    at.flip_log(root, lost.log_offset + 95)
    log_segment(root, 4096).unlink()
    before = tree(root, ".")
    code, out, _ = store("repair", root)
    assert code == 1
    start, end = lost.log_offset, lost.log_offset + lost.size
    assert out.splitlines() == [
        "1. make commitlog/00000000000000004096, empty",
        "   keeps  the numbering of the log and of all queues",
        "   loses  4096 bytes, log offsets 4096 to 8192: messages Orders/0 8 to 15, Orders/1 7 to "
        "14, Orders/2 7 to 14",
        f"2. fill log offsets {start} to {end} of commitlog/00000000000000008192",
        "   keeps  everything before and behind, in RocketMQ too; the bytes in lost+found",
        f"   loses  {lost.size} bytes that are damaged already: messages Orders/1 20",
        "then the consume queues are made again from the log; none ends lower than before",
        "then the index is made again from the log",
        "messages lost in all of this, as far as queues name them: 25",
        "nothing was changed; --yes does it",
    ]
    assert tree(root, ".") == before


def test_with_yes_it_is_done_and_verified(root: Path) -> None:
    at.flip_log(root, at.of_queue(root, 1)[20].log_offset + 95)
    done = store_process("repair", root, "--yes")
    assert done.code == 0
    assert f"{root} is SOUND" in done.out
    assert "NOTE  filler" in done.out
    assert done.out.splitlines()[-1].startswith("what was taken out is in lost+found-")
    assert "nothing to repair" in store("repair", root).out


def test_json_tells_the_plan_and_both_reports(root: Path) -> None:
    at.set_unit(root, 0, 5, bytes(20))
    report = store("repair", root, "--json").json
    assert (report["done"], report["steps"], report["after"]) == (False, [], None)
    assert (report["rebuild_queues"], report["rebuild_index"]) == (True, False)
    assert report["before"]["kinds"] == {"unit-missing": 1}
    report = store("repair", root, "--yes", "--json").json
    assert (report["done"], report["after"]["sound"]) == (True, True)


def test_a_group_behind_the_end_is_set_back(root: Path) -> None:
    table = root / "config" / "consumerOffset.json"
    table.write_text(at.OFFSETS.replace("2:30", "2:35"))
    assert "group g1 stands at 35 in Orders/2, which goes to 34" in store("repair", root).out
    assert store("repair", root, "--yes").code == 0
    assert table.read_text() == at.OFFSETS.replace("2:30", "2:34")


def test_a_group_is_not_said_to_go_back_where_its_queue_is_made_again(root: Path) -> None:
    """The queue's end is only known then: with the last file gone the group seems to be ahead."""
    max((root / "consumequeue" / "Orders" / "1").iterdir()).unlink()
    table = root / "config" / "consumerOffset.json"
    before = table.read_text()
    done = store("repair", root, "--yes")
    assert done.code == 0
    assert (
        "1. set back, in config/consumerOffset.json, what is still beyond its queue when the "
        "queues are made again: group g1 stands at 34 in Orders/1, which goes to 30"
    ) in done.out
    assert table.read_text() == before


def test_a_sound_store_exits_0(root: Path) -> None:
    before = tree(root, ".")
    code, out, _ = store("repair", root, "--yes")
    assert (code, out) == (0, f"{root}: nothing to repair\n")
    assert tree(root, ".") == before


def test_a_log_that_is_not_there_is_not_made_up(root: Path) -> None:
    (root / "commitlog").rename(root / "elsewhere")
    before = tree(root, ".")
    code, out, _ = store("repair", root, "--yes")
    assert code == 1
    assert out.startswith("CANNOT  the whole commit log is missing")
    assert tree(root, ".") == before


def test_no_store_exits_3(tmp_path: Path) -> None:
    code, out, err = store("repair", tmp_path, "--yes")
    assert (code, out) == (3, "")
    assert "is empty" in err
    assert list(tmp_path.iterdir()) == []
