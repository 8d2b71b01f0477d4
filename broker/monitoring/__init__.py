"""The broker as people and supervisors see it: HTTP port, metrics, health, systemd.

Reads plain counters; no request of a client comes through here. `metrics.py` makes the /metrics
page, the modules beside it are its sections; `setup.py` gives each its owners.
"""
