"""The output of commands: tables and JSON, lines of messages, times, progress.

Every command comes in; data goes to standard output, everything else to standard error.
"""
