"""The tables of a broker beside its messages: topics, groups, clients, offsets; and their files.

Each table has one owner and is saved as RocketMQ's JSON. Every part of the broker may come in.
Locks and rates, which no file keeps, are with their requests.
"""
