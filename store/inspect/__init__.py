"""The files of a store at rest, read whatever state they are in: layout, sources, single readers.

Nothing here changes a byte. Audit, repair, dumps, the retention forecast and Spark build on it.
"""
