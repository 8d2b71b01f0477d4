"""What archives and replays share: targets, the ledger of what was written, scope, pace.

The jobs `archive`, `replay` and `dlq` come in.
"""
