"""The soak's quick form, and leaks that its watch has to see; `soak.py` has the story."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.crowds.soak import Watcher, leaky, note, run


def test_a_mixed_load_leaves_memory_descriptors_and_threads_as_they_are(
    folder: Path, seed: int
) -> None:
    print(f"seed {seed}: python -m tests.crash.crowds.soak --seed {seed} --minutes 60")
    seconds = campaign.size("soak")
    result = run(folder, seed, seconds, lives=2)
    note(result, seconds)
    assert result.wrong == []
    assert result.lives == 2
    assert result.sent > max(seconds, result.refused)
    assert result.read > seconds


@pytest.mark.parametrize("what", ["memory", "descriptors", "threads"])
def test_a_leak_is_seen(tmp_path: Path, what: str) -> None:
    pause = threading.Event()
    found: list[str] = []
    with leaky(what) as pid:
        pause.wait(0.2)
        watcher = Watcher(pid, tmp_path)
        for _ in range(100):
            watcher.sample()
            pause.wait(0.03)
            if found := watcher.grown():
                break
    campaign.note_control("soak", f"a leak of {what}", bool(found), 1)
    assert [one[: len(what)] for one in found] == [what]
