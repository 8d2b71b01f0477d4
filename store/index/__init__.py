"""The index: finds records by the hash of `topic#key`, in files of slots and entries.

Dispatch puts keys in through `index_service.py`, queries ask it; recovery and the tools read single
files.
"""
