"""From a request code to its handler, and from an error to its answer.

Connections come in with each command; handlers register their codes.
"""
