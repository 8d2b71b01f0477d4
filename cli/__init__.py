"""The one command, `aerobee`: arguments, output, and a module for each group of commands.

`main.py` begins; nothing of ours imports this folder.
"""
