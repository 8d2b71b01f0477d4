"""`aerobee dlq`, and the commands about one message: where it is, again, past it.

`dead_letters.py` reads and `dead_letter_changes.py` changes; of single messages that is
`message_state.py` and `message_changes.py`. `asking.py` is shared.
"""
