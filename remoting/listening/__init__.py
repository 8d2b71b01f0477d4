"""The listening end: accepts sockets, looks at their first bytes, admits or refuses them.

Brokers and name servers open a `Server` for each port.
"""
