"""Free ports of the loopback address for what the tests start.

They lie below those that the kernel gives to outgoing connections, so nobody's connection takes one
between the moment it is found and the moment it is listened on; and the workers of a run that goes
on on several cores look in different places.
"""

import itertools
import os
import socket
from collections.abc import Iterator

_FIRST, _END = 20_000, 32_000
_STEP = 4
# Places that are left free between two workers. Without them the second worker might take a port
# above a place of the first worker, as the ports of shards are, between the two moments.
_APART = 4


def free_port(*above: int) -> int:
    """A port P that is free, as are P-2 (RocketMQ's VIP port), P+1 (its HA port), and the ports
    that far `above` it."""
    for port in itertools.islice(_PLACES, (_END - _FIRST) // _STEP):
        if all(_is_free(port + step) for step in (-2, 0, 1, *above)):
            return port
    raise AssertionError(f"no three free ports between {_FIRST} and {_END}")


def _places() -> Iterator[int]:
    """This process' share of the places, from one on that other runs hardly begin at."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    places = range(_FIRST, _END, _STEP)
    # A worker that replaces a dead worker has a number beyond the count.
    number %= count
    size = len(places) // count
    share = places[number * size : (number + 1) * size - _APART]
    begin = os.getpid() * 37 % len(share)
    return itertools.cycle([*share[begin:], *share[:begin]])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_PLACES = _places()
