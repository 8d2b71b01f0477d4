"""What people and supervisors see: the HTTP port, the pages of metrics, health, notifications.

Reads plain counters; nothing of a request's way comes through here.
"""
