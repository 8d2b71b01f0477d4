"""Frames and command headers: cutting a byte stream, and the three serializations of a header.

Connections come in for every request; the rest of the house sees `Command`.
"""
