"""Reading the commit log from front to back, where nothing may be believed.

Tells records from damage and a torn tail (`resynchronise.py` alone knows how to step behind
damage), judges which queue slot a record may have, and compares entries with what a queue holds.
Recovery, dispatch after a restart, the scrub and the tools are policies over it.
"""
