"""The lowest floor: the operating system's files, and the small files of a store directory.

`files.py` is the only door to the disk, with a faulty twin in the tests; beside it lie locks,
the checkpoint, the offsets file and the store's health. Every floor may come in.
"""
