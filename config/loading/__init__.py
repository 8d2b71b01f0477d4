"""The sources of values of settings: files, environment, flags, requests; and reading them again.

The commands and the daemons begin at `load.py`; a running daemon comes back by `reload.py`.
"""
