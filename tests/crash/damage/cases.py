"""All cases of a run, from its seed."""

import random
from collections.abc import Callable, Iterator

from tests.crash.damage.case import Case
from tests.crash.damage.kinds.access_cases import access_cases
from tests.crash.damage.kinds.config_cases import config_cases
from tests.crash.damage.kinds.derived_cases import derived_cases
from tests.crash.damage.kinds.ext_cases import ext_cases
from tests.crash.damage.kinds.log_cases import log_cases
from tests.crash.damage.kinds.older_cases import older_cases
from tests.crash.damage.kinds.root_cases import root_cases
from tests.crash.damage.originals import Original

Make = Callable[[Original, random.Random], Iterator[Case]]
_ALL: tuple[Make, ...] = (log_cases, derived_cases, older_cases, root_cases, access_cases)
#: The makers of cases for each of the originals.
_OF: dict[str, tuple[Make, ...]] = {
    "clean": (*_ALL, config_cases),
    "killed": _ALL,
    "cut": _ALL,
    "foreign": _ALL,
    "ext": (ext_cases,),
}


def all_cases(originals: dict[str, Original], seed: int) -> list[Case]:
    """All cases, each with a name of its own. A seed gives the same cases each time."""
    found = [
        case
        for name, makers in _OF.items()
        for make in makers
        for case in make(originals[name], random.Random(f"{seed} {name} {make.__name__}"))
    ]
    # Chance may choose the same bit twice.
    return list({case.name: case for case in found}.values())
