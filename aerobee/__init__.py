"""Aerobee: a message broker that speaks RocketMQ 4.9's protocol and keeps its store files.

Here are links to the folders, the version, the broker for tests, and the few modules that several
folders share and that import nothing of ours.
"""

__version__ = "0.1.0"
