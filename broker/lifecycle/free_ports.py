"""Are the ports of a start free? Asked before any of them is taken.

Each part says so of its own when it starts; a person would get to know one after the other.
"""

from collections.abc import Iterable

from aerobee.config.ports import Listener
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.server import is_taken
from aerobee.remoting.peers import address_text


async def check_ports_free(wanted: Iterable[Listener]) -> None:
    """Raises RemotingListenError, which names every port that somebody has, and what to do."""
    taken = [one for one in wanted if await is_taken(one.host, one.port)]
    if taken:
        lines = [f"  {address_text((one.host, one.port))}  {one.remedy}" for one in taken]
        count = "a port is" if len(taken) == 1 else f"{len(taken)} ports are"
        raise RemotingListenError(
            "\n".join([f"{count} in use; is another broker running?", *lines])
        )
