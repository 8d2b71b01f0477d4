"""Questions of administrators beyond `client/admin.py`: dead letters, single messages, traces.

The functions take the session of an `Admin` that is started, and belong to its loop.
"""
