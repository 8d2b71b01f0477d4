"""Access control of a broker: its files of accounts, followed while it runs, and what
administrators ask about them.

Who may do what is decided in `aerobee/access`, which a name server uses as well.
"""
