"""What a start makes of what a stop, clean or not, left behind.

Finds the log's end and brings queues and index to it; reads first, then changes. Only the
opening of a store and the audit's question whether a start would succeed come in here.
"""
