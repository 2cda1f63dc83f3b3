"""What both GPU backends share. Neither backend imports from the other.

launch_cache.py   one cache: what a call launches, replayed for the next call with the same layout
launch_plan.py    the allocations and launches of one call, recorded and replayed
launcher.py       Triton's innermost launch function
partition.py      how sequences are split over CTAs, and the tables of packed documents
carried_state.py  states (S, z) passed between kernels
state_scan.py     prefix sums of the states of splits (a Triton kernel)

Only state_scan.py imports Triton when it is imported: the cache is consulted before a backend is chosen.
"""
