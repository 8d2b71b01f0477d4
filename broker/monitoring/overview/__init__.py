"""The state of a broker for administrators: recent refusals, growth, clients, limits.

`requests.py` serves it (31030, 31032, protocol/WIRE.md 9).
"""
