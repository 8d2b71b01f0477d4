"""Is a store sound? Reads what a store at rest holds; `verify.py` begins."""
