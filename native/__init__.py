"""The compiled form of the hot path, of the bulk decode, and of reading a log again.

On the hot path it takes plain sends from the read buffer to the log's mapping. It knows what the
plain Python path gives it when it is made (property names, layout of a record, templates of
answers) and hands back all that is not plain, before the first byte is written. The plain path is
the rule; `tests/native` holds the two against each other.
"""
