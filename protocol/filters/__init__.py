"""What a consumer wants of a topic: tags by hash, or a SQL92 expression compiled once.

The broker's pulls and the pipeline come in.
"""
