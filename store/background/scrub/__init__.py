"""The scrub: reads what is stored in the background, and finds damage before a consumer does.

Works in small steps beside the running store, which owns what is put right.
"""
