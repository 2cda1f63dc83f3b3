"""Heads with a window, in plain Triton: for both GPU backends, where Hopper has no kernels of its own.

rows.py     which rows see each other, and with what weight
band.py     narrow windows: tiles of rows and the tiles that their windows reach, of queries
            (band_queries.py) and of keys (band_keys.py)
wide.py     wide windows: whole chunks through states, the edges as squares
step.py     one token a row, both kinds of heads in one launch (mixed_step.py)
configs.py  block sizes, a fixed table
launch.py   which of these, or of a backend's own, make up a forward and a backward
one_plan.py a call with windows as one launch plan
heads.py    a backend for heads with and without windows
"""
