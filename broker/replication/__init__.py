"""Replication as the broker runs it: the HA port for slaves, and the connection to a master.

The rules stand in `store/replication/`; here are the sockets, the tasks, and what a slave asks its
master for beside the log.
"""
