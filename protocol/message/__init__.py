"""The stored message: record, properties, batch, ids. Nobody else counts its bytes.

Store, broker, client and pipeline come in.
"""
