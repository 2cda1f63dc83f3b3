"""What both GPU backends share. Neither backend imports from the other.

launch_cache.py   one cache: what a call launches, replayed for the next call with the same layout
launch_plan.py    the allocations and launches of one call, recorded and replayed
launcher.py       Triton's innermost launch function
partition.py      how sequences are split over CTAs, and the tables of packed documents
carried_state.py  states (S, z) passed between kernels
state_scan.py     prefix sums of the states of splits (a Triton kernel)
rows.py           what every Triton kernel does with a block of rows, and the table of the four outputs
roles.py          which tensors take part in each of the four
blocks.py         sizes of blocks, and the type of the operands of matrix products
padding.py        how tensors must be aligned
side_stream.py    a second stream for what a call launches aside
head_norm.py      the norm of many heads (a Triton kernel), for models
windows/          heads with a window

The first five do not import Triton when they are imported: the cache is consulted before a backend is chosen.
"""
