"""Several brokers on one machine, run as one: a supervisor, its shards, one name server.

A shard is a whole broker: a process with its own store, ports and name. The supervisor serves no
client: it starts, watches, restarts and stops, and gives one HTTP page for all.
"""

from typing import Final

#: The most shards of a supervisor: more than machines have cores.
SHARDS_MAX: Final = 256
