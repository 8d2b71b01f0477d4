"""Reading the commit log from front to back, where nothing may be believed.

Tells records from damage and a torn tail, and judges which queue slot a record may have.
Recovery, dispatch after a restart, the scrub and the tools are policies over it.
"""
