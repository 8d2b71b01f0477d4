"""Staged batches, which jobs write effectively once into topics (decision 10).

`staging.py` builds the parts around the store and registers their requests.
"""
