"""`aerobee topic`, `group`, `offset`, `message` and `broker`: commands that ask running brokers.

`command_session.py` runs one of them with a client; `main.py` comes in.
"""
