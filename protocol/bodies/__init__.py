"""Bodies of requests and answers, as fastjson writes and reads them.

`common.py` has what all share; the other modules hold one subject each.
"""
