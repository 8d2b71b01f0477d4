"""Requests of administrators: topics and groups, settings, traffic, consumers and their progress.

mqadmin, dashboards and `aerobee` ask them; the router comes in by `handlers()`.
"""
