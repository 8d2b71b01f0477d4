"""Backups of a store, made beside a running broker: made, checked, restored.

`manifest.py` owns their layout, which store/FORMAT.md 14 describes. Only the command line comes in.
"""
