"""Audit events: each changing request leaves one in a file beside the tables.

`auditing.py` stands around the handlers of changing requests, `recorder.py` has their events
written before they are answered, `audit_file.py` owns the files, `journal.py` writes to systemd's
journal instead. The form of an event is `protocol/bodies/audit.py`.
"""
