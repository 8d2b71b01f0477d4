"""What is configured: settings and their files, accounts, and the contexts of this user's commands.

Also what a shell and `man` are to know of the commands.
"""
