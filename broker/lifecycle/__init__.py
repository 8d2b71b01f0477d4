"""The broker as a process: ports, start and stop in order, signals, exit codes.

The commands and the shards come in; only `daemon.py` and `core.py` know all parts.
"""
