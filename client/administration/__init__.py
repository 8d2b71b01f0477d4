"""Questions and changes of administrators beyond those of `client/admin.py`.

The functions take a client that is started, or its session, and belong to its loop.
"""
