"""Filters by which a consumer takes messages of a topic: tags by hash, or compiled SQL92.

The broker's pulls and the pipeline come in.
"""
