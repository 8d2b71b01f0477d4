"""Keeps a recorded run whose states went wrong, and judges states of it again.

    python -m tests.crash.power_cuts.replay FOLDER [STATE ...]      a state: CUT/SUBSET/SEED

FOLDER is what a failed test printed. Without states, all cuts right before a barrier are judged.
With `--control NAME` the recovery is broken on purpose (`controls.py`).
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.power_cuts.block_log import BlockLog, CrashState
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.crash.power_cuts.recorder import BARRIER

if TYPE_CHECKING:
    from tests.crash.power_cuts.recording import Recording

_KEPT = Path(__file__).parents[3] / ".run" / "crash"


def keep(recording: Recording) -> Path:
    """Store a recording for later; where."""
    for number in itertools.count(1):
        folder = _KEPT / f"{recording.plan.flush}-{recording.plan.seed}-{number}"
        if not folder.exists():
            break
    folder.mkdir(parents=True)
    shutil.copy(recording.image, folder / "image")
    shutil.copy(recording.log_path, folder / "log")
    with (folder / "run").open("wb") as file:
        pickle.dump((recording.plan, recording.history, recording.down), file)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def load(folder: Path) -> Recording:
    """The recording that `keep` stored."""
    from tests.crash.power_cuts.recording import Recording

    with (folder / "run").open("rb") as file:
        plan, history, down = pickle.load(file)
    image, log_path = folder / "image", folder / "log"
    log = BlockLog.read(image, log_path)
    return Recording(plan, log, history, image, log_path, down=down)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("states", nargs="*", type=CrashState.parse, metavar="STATE")
    parser.add_argument("--control", default="")
    parsed = parser.parse_args()
    recording = load(parsed.folder)
    states = parsed.states or [
        CrashState(index, "all", 0)
        for index, entry in enumerate(recording.log.entries)
        if index >= recording.first and entry.kind == BARRIER
    ]
    bad = 0
    with memory_folder() as folder:
        judge = recording.judge(folder, parsed.control)
        for state, disk in recording.log.images(states):
            wrong = judge.judge(disk, recording.known(state.cut), recording.promise(state.cut))
            bad += bool(wrong)
            print(f"state {state}: {len(wrong)} violations")
            for one in wrong:
                print(f"    {one.rule}: {one.text}")
    print(f"{bad} of {len(states)} states are wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
