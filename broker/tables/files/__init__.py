"""The files of the tables: JSON state, replaced whole, and logs of changes.

The tables come in; what a text of offsets or entries looks like is known here alone.
"""
