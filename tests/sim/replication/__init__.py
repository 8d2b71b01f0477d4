"""A master and its slaves on disks in memory, with a network that delays, cuts and loses; the rules
of both sides are those of store/log/replication."""
