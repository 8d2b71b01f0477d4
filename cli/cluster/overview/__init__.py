"""Commands that answer what is wrong now: status, clients, a topic that cannot be used, permission.

A peer that does not answer costs them one time-out; the rest is shown.
"""
