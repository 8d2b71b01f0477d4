"""The daemon: request handlers, tables, timers, metrics, start and stop, around one open store.

`broker_process.py` is the process, `daemon.py` builds and starts everything, `core.py` is a broker
without its sockets. Only the command line and `aerobee.testing` come in.
"""
