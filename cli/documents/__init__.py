"""The JSON documents that commands print with `--json`: one Struct each, its schema in docs/json.

Scripts rely on them: fields are only added (`schema_pages.py`).
"""
