"""What a broker derives from its log, many records at once: queue entries, index keys, files.

The jobs `audit` and `rebuild` come in.
"""
