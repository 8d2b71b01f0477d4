"""Why a connection is not being read, one bit each; it is read again when none is left."""

from __future__ import annotations

# The peer does not take its answers.
OUTPUT = 1
# Unfinished frames of all connections fill their budget.
MEMORY = 2
# The handler asked, e.g. because of too many requests in flight.
OWNER = 4
# Others have their turn: the peer sends more than one turn of the loop serves.
TURN = 8
