"""Access control: accounts, their rights, and the rights that requests need (protocol/WIRE.md 7.1).

RocketMQ's own files of accounts are read as they are. Broker and name server ask `control` before
they serve a request, and `account_service` keeps its rules up to date; the command line asks
`explain`. No sockets.
"""
