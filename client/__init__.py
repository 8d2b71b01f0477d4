"""A client of RocketMQ brokers, ours and Java's: producer, consumers, administration.

asyncio first; `aerobee.client.blocking_roles` has the same roles for programs without an event
loop. Programs may rely on the names in `__all__`; the modules beside it are internal.

All names come from `public.py`, when a program first asks for any of them. So a program that
imports a module beside it, as the commands of `aerobee` do with `admin.py`, does not wait for
consumers and transactions.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.client.public import *  # noqa: F403 - those of its __all__
else:
    _PUBLIC = "aerobee.client.public"

    def __getattr__(name: str) -> Any:
        # `from aerobee.client import queue_offsets` asks for a module below here, before it is
        # imported: the modules that do so are what `public.py` is made of.
        if find_spec(f"{__name__}.{name}") is not None:
            raise AttributeError(f"module {name!r} of {__name__!r} is not imported")
        public = import_module(_PUBLIC)
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(public, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(_PUBLIC).__all__})
