"""Lets clients find this broker: its addresses, and its registration at name servers.

The daemon comes in at start, stop and on a timer; changed topics ask for a registration at
once.
"""
