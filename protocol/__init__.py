"""The remoting protocol and the stored message: bytes in, values out. No I/O, no clock.

`WIRE.md` describes the formats. Every folder comes in; nothing of ours is imported.
"""
