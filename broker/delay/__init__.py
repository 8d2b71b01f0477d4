"""Delayed messages: put where they wait, delivered when they are due, and the progress of that.

`core.py` builds it; sends come in through the stored properties, timers drive the delivery.
"""
