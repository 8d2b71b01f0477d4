"""Replication between brokers: what a master and a slave say to each other, over sockets.

`comparing.py` decides whether and from where a slave follows its master, by the answers that
`master_requests.py` gets; `log_ranges.py` answers the questions of other brokers.
"""
