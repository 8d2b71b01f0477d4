"""Requests of administrators: topics and groups, settings, traffic, who consumes what and how far.

mqadmin, dashboards and `aerobee` ask them; the router comes in by `handlers()`.
"""
