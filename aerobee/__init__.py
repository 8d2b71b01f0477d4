"""Aerobee: a message broker that speaks RocketMQ 4.9's protocol and keeps its store files."""

__version__ = "0.1.0"
