"""The name server: routes and a key-value table behind a port.

Runs in the broker's process or alone; `name_server_requests.py` and `routes.py` know no sockets.
"""
