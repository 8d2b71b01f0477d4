"""`aerobee store`: tools for a store at rest.

`parser.py` declares the arguments; `main.py` runs one module for one command.
"""
