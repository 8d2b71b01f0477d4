"""An index of another broker, after a power cut, in a log whose clock had been set back."""

from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import ManualClock, kill_image, message, small_settings

DAY_MS = 86_400_000


class AfterPowerCut(Files):
    def made_and_left(self, path: str) -> bool:
        return False


@pytest.mark.parametrize("set_ms", [DAY_MS, 0, -DAY_MS], ids=["forward", "still", "back"])
def test_keys_that_were_not_synced_are_made_again_whatever_the_times_say(
    tmp_path: Path, set_ms: int
) -> None:
    """The checkpoint's time is that of the last full file; a younger file may have lesser times."""
    clock = ManualClock()
    changes = {"index_entries": 10, "index_slots": 4, "consume_queue_flush_interval_ms": 60_000}
    store = MessageStore.open(small_settings(tmp_path / "running", **changes), clock=clock)
    for number in range(14):  # nine are in the first file
        if number == 9:
            clock.time_ms += set_ms
        store.log.put(message(b"%02d" % number + b"." * 300, keys=f"k{number}"))
    store.dispatch()
    assert store._sync.sync()
    assert store._queue_flusher.flush(0)
    store._parts.index.flush(all_files=False)  # type: ignore[union-attr]
    root = kill_image(tmp_path / "running", tmp_path / "image")
    assert store.close()
    (root / "offsets").unlink()
    younger = sorted((root / "index").iterdir())[1]
    data = bytearray(younger.read_bytes())
    data[40 + 4 * 4 + 20 : 40 + 4 * 4 + 60] = bytes(40)  # entries 1 and 2 were not synced
    younger.write_bytes(data)
    store = MessageStore.open(small_settings(root, **changes), AfterPowerCut(), clock)
    for number in range(14):
        assert len(store.search.query("Orders", f"k{number}", 8, 0, 1 << 62).records) == 1, number
    store.close()
