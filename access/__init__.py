"""Who may do what: accounts, their rights, and what each request needs (protocol/WIRE.md 7.1).

RocketMQ's own files of accounts are read as they are. Broker and name server ask `control` before
they serve a request, and `service` keeps its rules; the command line asks `explain`. No sockets.
"""
