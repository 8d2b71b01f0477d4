"""Stored messages in bulk: bytes with record starts in, Arrow columns out.

Both sources and the jobs come in. Knows numpy and Arrow, and no Spark.
"""
