"""Random kills of the daemon under 8 producers and 4 consumers; `black_box.py` has the story."""

from __future__ import annotations

from pathlib import Path

from tests import campaign
from tests.crash.daemon_kills.black_box import figures, run


def test_random_kills_lose_nothing_acknowledged(folder: Path, seed: int) -> None:
    print(f"seed {seed}: python -m tests.crash.daemon_kills.black_box --seed {seed}")
    kills = campaign.size("random kills")
    result, caught = run(folder, seed, kills, control=True)
    campaign.note("random kills", result.kills, **figures(result))
    campaign.note_control("random kills", "an acked record is gone", bool(caught), 1)
    assert result.wrong == []
    assert result.kills == kills
    assert result.acked > kills
    assert any(one.startswith("I1 ") for one in caught), "a lost message was not missed"
