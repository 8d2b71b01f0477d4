"""This broker among others: what name servers know of it, and the copies of its log and tables.

`registration/` lets clients and slaves find it; `replication/` gives its log to slaves, or follows
a master, and `comparison/` says before whether the two logs fit. `table_copies/` brings the tables,
which are not in the log.
"""
