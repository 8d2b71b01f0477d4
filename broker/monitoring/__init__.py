"""What people and supervisors see: the HTTP port, the pages of metrics, health, systemd.

Reads plain counters; no request of a client comes through here.
"""
