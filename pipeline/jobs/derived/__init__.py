"""Queue entries and index keys that follow from a log, and the judgement of both.

The jobs `audit` and `rebuild` come in.
"""
