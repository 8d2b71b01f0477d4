"""Consumer groups as commands see them.

`group_view.py` puts the answers of all brokers together, and counts; `group_explain.py` finds why a
group stands. `group_changes.py` and `offset_changes.py` change settings and offsets;
`offset_moves.py` shows moves of offsets, and prints the commands that do them or take them back.
"""
