"""Replication as the broker runs it: the HA port for slaves, and the connection to a master.

The rules stand in `store/log/replication/`. Here are the sockets and the tasks, and the requests by
which a slave asks its master for all that is not in the log.
"""
