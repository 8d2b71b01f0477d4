"""The storage model one floor up: transactions and the timer over a store on a disk in memory, with
the files of their progress on the same disk. `stepped.py` is the broker, `life.py` what is done to
it, `told.py` what was answered, `judge.py` what has to hold after a crash at any place."""
