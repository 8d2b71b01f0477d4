"""Tools that change a store at rest: rebuild, repair, truncate. `at_rest.py` locks it for them.

Only the command line and the tests come in.
"""
