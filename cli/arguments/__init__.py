"""Arguments that several commands share, and the types of arguments.

The parsers come in; nothing is run from here.
"""
