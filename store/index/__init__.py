"""The index: finds records by the hash of `topic#key`, in files of slots and entries.

`layout.py` says where the parts of a file lie and how keys are hashed. Dispatch puts keys in
through `index_service.py`, queries ask it; recovery and the tools read single files.
"""
