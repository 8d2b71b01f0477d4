"""Broken texts of headers, and the bytes that a Java broker 4.9.7 on JDK 17 keeps of each.

The bytes were found by sending the texts to that broker and looking at the stored records;
tests/interop/clients/test_hostile.py sends the same texts to the broker under test.
"""

# The bytes that a peer sent in a text, and the bytes that RocketMQ keeps of the text.
BROKEN_BYTES = [
    (b"a\xffb", b"a\xef\xbf\xbdb"),
    (b"a\xf0\x9f\x98b", b"a\xef\xbf\xbdb"),
    (b"a\xf0\x9fb", b"a\xef\xbf\xbdb"),
    (b"a\xf0b", b"a\xef\xbf\xbdb"),
    (b"a\xe2\x82", b"a\xef\xbf\xbd"),
    (b"caf\xe9 au", b"caf\xef\xbf\xbd au"),
    (b"caf\xc3", b"caf\xef\xbf\xbd"),
    (b"a\xc3(b", b"a\xef\xbf\xbd(b"),
    (b"a\xc0\xafb", b"a" + b"\xef\xbf\xbd" * 2 + b"b"),
    (b"a\x80\x80b", b"a" + b"\xef\xbf\xbd" * 2 + b"b"),
    (b"a\xe0\x80\x80b", b"a" + b"\xef\xbf\xbd" * 3 + b"b"),
    (b"a\xf5\x80\x80\x80b", b"a" + b"\xef\xbf\xbd" * 4 + b"b"),
    (b"a\xf4\x90\x80\x80b", b"a" + b"\xef\xbf\xbd" * 4 + b"b"),
    # Halves of a surrogate pair as three bytes each are one character there, three in Python.
    (b"a\xed\xa0\xbdb", b"a\xef\xbf\xbdb"),
    (b"a\xed\xa0b", b"a\xef\xbf\xbdb"),
    (b"a\xed\xa0", b"a\xef\xbf\xbd"),
    (b"a\xed\xa0\xbd\xed\xb8\x80b", b"a" + b"\xef\xbf\xbd" * 2 + b"b"),
    (b"a\xef\xbf\xbfb", b"a\xef\xbf\xbfb"),
]
BROKEN_ESCAPES = [
    (b"a\\uD83Db", b"a?b"),
    (b"a\\uDE00b", b"a?b"),
    (b"a\\uDE00\\uD83Db", b"a??b"),
    (b"a\\uD83D", b"a?"),
    (b"a\\uD83D\\uDE00\\uD83D", b"a\xf0\x9f\x98\x80?"),
    (b"a\\uD83D\\n\xff", b"a?\n\xef\xbf\xbd"),
]
