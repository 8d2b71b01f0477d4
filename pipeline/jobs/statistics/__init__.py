"""Numbers and pictures of traffic and retention, made of sums.

The jobs `traffic` and `retention` come in.
"""
