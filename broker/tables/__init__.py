"""What the broker knows beside messages: topics, groups, clients, offsets, locks; and their files.

Each table has one owner with named moves, and is saved as RocketMQ's JSON. All of the broker
comes in.
"""
