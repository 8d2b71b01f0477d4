"""Real clients and the real Java broker against ours; see README.md in this folder."""
