"""The audit of a broker: which requests are audited and how their objects are told (`audited.py`),
and its wiring (`broker_audit.py`). Imported when the first such request comes."""
