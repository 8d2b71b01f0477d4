"""The bounds of the broker: limits and their relations, memory at worst, containers that grow.

`limits_page.py` makes docs/limits.md of it; tests hold that nothing grows without a row here.
"""
