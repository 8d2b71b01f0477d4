"""Claims about the one reader of the log: each judgement is made in one place, and used by all."""

import ast
import random
import shutil
from pathlib import Path

import pytest

from aerobee.protocol.message.record_layout import LOG_OFFSET_POSITION, MAGIC_POSITION
from aerobee.store.message_store import MessageStore
from tests.crash.damage.judge import scrub_once
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import adopt, small_settings

STORE = Path(__file__).resolve().parents[5] / "store"
BODY_POSITION = 88


def users_of(name: str) -> set[str]:
    """The modules of the store that say a name, as a function, a class or a method."""
    found = set()
    for path in sorted(STORE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = node.id if isinstance(node, ast.Name) else ""
            said = node.attr if isinstance(node, ast.Attribute) else said
            if said == name:
                found.add(str(path.relative_to(STORE)))
    return found


def test_one_place_knows_how_to_step_behind_a_damaged_record() -> None:
    assert users_of("Resynchroniser") == {"log/scan/log_scanner.py", "log/scan/incoming.py"}
    # A record's magic is looked for there, and by who asks whose a file is, or if it is empty,
    # or which record holds a byte.
    assert users_of("magics") == {
        "log/scan/resynchronise.py", "inspect/segment_owners.py", "at_rest/repair/steps.py",
        "log/replication/log_ranges.py",
    }  # fmt: skip
    assert users_of("claimed_sizes") == {"log/scan/resynchronise.py", "recovery/cross_check.py"}
    assert users_of("MESSAGE_MAGIC") == {
        "log/scan/segment_reader.py",
        "log/scan/incoming.py",
        "inspect/start_checks.py",
        "reading/damage.py",
        "reading/judging.py",
        "reading/queue_reader.py",
    }


def test_one_place_knows_what_follows_from_a_record() -> None:
    assert users_of("tags_and_keys") == {"dispatch/derived.py"}
    assert users_of("further_queues") == {"dispatch/derived.py", "queues/slots.py"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("template") / "store")


def damage(root: Path, chance: random.Random) -> None:
    """Neighbours, most of them, in what tells where the next record begins, or in the body."""
    records = at.records(root)
    first = chance.randrange(2, 70)
    for number in sorted(chance.sample(range(first, first + 7), chance.randrange(1, 5))):
        place = records[number].log_offset
        part = chance.choice((2, MAGIC_POSITION + 3, LOG_OFFSET_POSITION + 5, BODY_POSITION - 1))
        at.flip_log(
            root, place + chance.choice((part, BODY_POSITION + 2)), 1 << chance.randrange(8)
        )


@pytest.mark.parametrize("seed", range(12))
def test_recovery_audit_and_scrub_name_the_same_damage(
    template: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    root = at.copy(template, tmp_path / "audited")
    damage(root, chance)
    audited = [(gap.start, gap.end) for gap in at.check(root).gaps]
    assert audited
    scrubbed, recovered = tmp_path / "scrubbed", tmp_path / "recovered"
    for target in (scrubbed, recovered):
        shutil.copytree(root, target)
        adopt(target)
    (recovered / "offsets").unlink()
    (recovered / "index").rename(tmp_path / "index")  # so that all of the log is read
    store = MessageStore.open(small_settings(recovered))
    assert [(gap.start, gap.end) for gap in store.recovery.gaps] == audited
    store.close()
    store = MessageStore.open(small_settings(scrubbed, scrub_bytes_per_second=1 << 40))
    scrub_once(store)
    assert list(store.known_gaps) == audited
    store.close()
