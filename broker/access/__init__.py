"""Requests of administrators about a broker's accounts.

`aerobee/access`, which a name server uses as well, decides about rights; this is the part that
knows a broker.
"""
