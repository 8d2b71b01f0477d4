"""`aerobee dlq`, and the commands about one message: where it is, and what can be done about it."""
