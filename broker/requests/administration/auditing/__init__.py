"""The audit of a broker.

`audited.py` says which requests are audited and how their objects are named, `broker_audit.py`
wires it up. They are imported when the first such request comes.
"""
