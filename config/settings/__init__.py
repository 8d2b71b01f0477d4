"""The declarations of all settings: type, unit, default, range, reason.

`setting.py` is what one setting is; `config/model.py` gathers them.
"""
