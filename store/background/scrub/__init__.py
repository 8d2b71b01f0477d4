"""The scrub reads a store in the background, and finds damage before a consumer does.

Works in small steps beside the running store, which owns and repairs the files.
"""
