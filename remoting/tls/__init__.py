"""TLS at both ends: handshakes, sessions over a socket, a transport for asyncio.

The listening end comes in by `tls_session.py`, the calling end by `client_tls.py`.
"""
