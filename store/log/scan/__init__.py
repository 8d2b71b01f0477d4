"""Reads the commit log from front to back, and believes nothing.

Tells records from damage and a torn tail (`resynchronise.py` alone knows how to step over damage),
judges which queue slot a record may have, and compares entries with what a queue holds. Recovery,
dispatch after a restart, the scrub and the tools are policies over it.
"""
