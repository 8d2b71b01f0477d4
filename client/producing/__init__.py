"""Producers: choosing queues, sending, retrying, and staged batches.

Programs come in through the names of `aerobee.client`.
"""
