"""Heads with a window, for both GPU backends, in plain Triton.

rows.py     which rows see each other, and with what weight
band.py     narrow windows: tiles of rows and the tiles that their windows reach, of queries
            (band_queries.py) and of keys (band_keys.py)
wide.py     wide windows: whole chunks through states, the edges as squares
decode.py   one token a row: the last keys and values, moved up by one place
configs.py  block sizes, a fixed table
launch.py   which of these make up a forward, a backward and a step
heads.py    a backend for heads with and without windows
"""
