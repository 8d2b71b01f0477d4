"""Bounded connections, both ends: frames to commands, answers in one write, limits kept.

The broker, the name server and the clients come in; only `protocol/` is known here.
"""
