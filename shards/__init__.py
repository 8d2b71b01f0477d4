"""Several brokers on one machine, run as one: a supervisor, its shards, one name server.

A shard is a whole broker, a process with a store, ports and a name of its own. The supervisor
serves no client: it starts, watches, restarts and stops, and gives one HTTP page for all.
"""

from typing import Final

#: The most of one supervisor: more cores than machines have.
SHARDS_MAX: Final = 256
