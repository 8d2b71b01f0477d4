"""The load generator: processes whose connections send or read by the clock, and count.

`fleet.py` above starts the processes, and `measure.py` leads them.
"""
