"""Checks that the ports of a start are free, before any of them is taken.

Each part would check its own port when it starts; but then a person would learn of one fault after
the other.
"""

from collections.abc import Iterable

from aerobee.config.ports import Listener
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.server import is_taken
from aerobee.remoting.peers import address_text


async def check_ports_free(wanted: Iterable[Listener]) -> None:
    """Raise RemotingListenError, which names every port that is taken, and the remedy."""
    taken = [one for one in wanted if await is_taken(one.host, one.port)]
    if taken:
        lines = [f"  {address_text((one.host, one.port))}  {one.remedy}" for one in taken]
        count = "a port is" if len(taken) == 1 else f"{len(taken)} ports are"
        raise RemotingListenError(
            "\n".join([f"{count} in use; is another broker running?", *lines])
        )
