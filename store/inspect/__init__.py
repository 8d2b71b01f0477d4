"""Reads the files of a store at rest, whatever their state: layout, sources, single readers.

Nothing here changes a byte. Audit, repair, dumps, the retention forecast and Spark build on it.
"""
