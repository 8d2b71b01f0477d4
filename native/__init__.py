"""The compiled form of the hot path, of the bulk decode, and of reading a log again.

On the hot path it takes plain sends from the read buffer to the log's mapping. It knows what the
plain Python path gives it when it is made (property names, layout of a record, templates of
answers) and hands back all that is not plain, before the first byte is written. The plain path is
the rule; `tests/native` holds the two against each other.

`sockets` reads and writes, `requests` finds the frames and fields of a read, `sends` and `pulls`
serve them, `guard` admits accounts with `sha1`. `reads` takes a queue's entries and the records
they name, `placing` completes the records of a batch, `dispatch` writes entries of queues and
index, `derive` those of records that a recovery reads. `decode` makes Spark's columns.
"""
