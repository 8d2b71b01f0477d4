"""Consumers: push with rebalancing, pull, offsets, order locks, listeners.

Programs come in through the names of `aerobee.client`.
"""
