"""Configuration: settings and their files, accounts, and the contexts of this user's commands.

The scripts of shells and the manual page of the commands are made here as well.
"""
