"""Recovery: a start puts in order the files that a stop, clean or not, has left.

Finds the log's end and brings queues and index to it; reads first, then changes. Only the
opening of a store and the audit's question whether a start would succeed come in here.
"""
