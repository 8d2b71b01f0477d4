"""Questions of administrators beyond those of `client/admin.py`.

The functions take the session of a client that is started, or an `Admin`, and belong to its loop.
"""
