"""Delayed messages: put where they wait, given out when they are due, progress kept.

`core.py` builds it; sends come in through the stored properties, timers drive the delivery.
"""
