"""Consume queues: where the messages of each (topic, queue id) lie in the commit log.

Files of entries, their extension files, and the table of all queues. Everything here can be
made again from the log; dispatch and recovery write, readers and tools look.
"""
