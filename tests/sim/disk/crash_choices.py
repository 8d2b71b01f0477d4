"""Which of the possible states after a crash are looked at, and their names.

Up to ten doubts: every combination of old and new. Beyond: none, all, each alone, each missing and
200 random ones, which also pick versions in between. On top of both, pages torn at 512 bytes. A
name says all that is needed to make the same choice again (`picks_of`):

    none  all  alone-7  missing-7  bits-1f  random-42  torn-42

`kill` is no power cut: the process is gone, the machine still up, and what was stored is there. Not
what a failed sync was about: the kernel shows that until it forgets it, so it may be either way
(`killed-3`).

`hurt-2` is a power cut or a kill and damage of what was flushed, by turns (`damage.py`).
"""

import random
from collections.abc import Iterator, Sequence

from tests.sim.disk.crash_model import SECTORS, Doubt, Pick

EXHAUSTIVE = 10
RANDOM = 200
TORN = 24
KILLED = 8
#: The number of damages, and the distance of the places that get them.
HURT = 2
HURT_EVERY = 3


def choices(doubts: Sequence[Doubt]) -> Iterator[str]:
    """Names of the choices to look at."""
    yield "none"
    yield "kill"
    if any(doubt.stuck for doubt in doubts):
        yield from (f"killed-{number}" for number in range(KILLED))
    if not doubts:
        return
    yield "all"
    count = len(doubts)
    if count <= EXHAUSTIVE:
        yield from (f"bits-{bits:x}" for bits in range(1, (1 << count) - 1))
    else:
        yield from (f"alone-{number}" for number in range(count))
        yield from (f"missing-{number}" for number in range(count))
    if count > EXHAUSTIVE or any(doubt.versions > 2 for doubt in doubts):
        yield from (f"random-{number}" for number in range(RANDOM))
    if any(doubt.kind == "page" for doubt in doubts):
        yield from (f"torn-{number}" for number in range(TORN))


def picks_of(name: str, doubts: Sequence[Doubt]) -> list[Pick]:
    """The version of each doubt that the name stands for."""
    kind, _, text = name.partition("-")
    newest: list[Pick] = [doubt.versions - 1 for doubt in doubts]
    if kind in ("none", "hurt") and not (kind == "hurt" and int(text) % 2):
        return [0] * len(doubts)
    if kind == "all":
        return newest
    if kind == "kill" or (kind == "hurt" and int(text) % 2):
        return [0 if doubt.stuck else doubt.versions - 1 for doubt in doubts]
    if kind == "alone":
        return [pick if at == int(text) else 0 for at, pick in enumerate(newest)]
    if kind == "missing":
        return [0 if at == int(text) else pick for at, pick in enumerate(newest)]
    if kind == "bits":
        bits = int(text, 16)
        return [pick if bits >> at & 1 else 0 for at, pick in enumerate(newest)]
    rng = random.Random(f"{name} {len(doubts)}")
    if kind == "killed":
        return [rng.choice((0, d.versions - 1)) if d.stuck else d.versions - 1 for d in doubts]
    picks: list[Pick] = [_any_version(rng, doubt) for doubt in doubts]
    if kind == "torn":
        pages = [at for at, doubt in enumerate(doubts) if doubt.kind == "page"]
        for at in rng.sample(pages, rng.randint(1, min(3, len(pages)))):
            picks[at] = _torn(rng, doubts[at].versions)
        return picks
    assert kind == "random", name
    return picks


def _any_version(rng: random.Random, doubt: Doubt) -> int:
    """Old or new as a rule, now and then something in between."""
    if doubt.versions > 2 and rng.random() < 0.3:
        return rng.randrange(doubt.versions)
    return rng.choice((0, doubt.versions - 1))


def _torn(rng: random.Random, versions: int) -> Pick:
    """A page whose sectors are of different times: a cut between two, or any mixture."""
    older, newer = sorted(rng.sample(range(versions), 2))
    if rng.random() < 0.5:
        cut = rng.randint(1, SECTORS - 1)
        first, second = rng.choice(((older, newer), (newer, older)))
        return (first,) * cut + (second,) * (SECTORS - cut)
    return tuple(rng.randrange(versions) for _ in range(SECTORS))


def is_kill(name: str) -> bool:
    """Whether the machine stays up in that choice."""
    return name.startswith("kill") or (is_hurt(name) and int(name[-1]) % 2 == 1)


def is_hurt(name: str) -> bool:
    """Whether the log is damaged on top of it."""
    return name.startswith("hurt")
