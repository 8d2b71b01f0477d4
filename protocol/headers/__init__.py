"""Typed request and response headers, each field declared once.

`fields.py` is how they are declared; the other modules hold one subject each.
"""
