"""Replication of the commit log: the rules of a master and of a slave, without sockets or a clock.

`feed.py` says what a master sends to each slave, and which reports count; `appender.py` takes the
blocks of a master into a slave's log. The broker brings the bytes; tests/sim brings them by a
network that loses and splits. `log_ranges.py` reads what a slave compares with its master before it
follows.
"""
