"""Every setting once, and where its value comes from: files, environment, flags.

`load.py` is the door; limits and rules between settings are checked before anything starts.
"""
