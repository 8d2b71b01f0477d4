"""The stored message: record, properties, batch, ids. No other folder counts its bytes.

Store, broker, client and pipeline come in.
"""
