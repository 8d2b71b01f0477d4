"""What an archive is on its file system: the ledger that decides what is in it (ledger.py), what it
is for (selection.py), and the directory or bucket it is in (target.py, s3.py). The jobs come in by
`Ledger` and `Target`."""
