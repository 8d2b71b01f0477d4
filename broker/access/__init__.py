"""What administrators ask a broker about its accounts.

Who may do what is decided in `aerobee/access`, which a name server uses as well; this is the part
that knows a broker.
"""
