"""Commit log segments as files: mapped, ordered in a queue, allocated ahead, warmed, pooled.

Knows lengths and positions, but no records. The log appends through it, readers pin views;
tools that only look use it read-only.
"""
