"""The tables of a master, copied to its slaves: topics, groups, offsets, and how far delays, timer
and staged batches are. The log brings the messages (`cluster/replication/`); these tables are what
is not in the log.
"""
