"""Work beside the requests: periodic tasks, worker threads, settings that change, failed saves.

The core starts it; what has to happen on the loop is called there.
"""
