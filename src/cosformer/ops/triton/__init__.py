"""The operator on CUDA GPUs, in plain Triton. Imported only when it is chosen.

rows.py              what every kernel does with a block of rows, and the table of the four outputs
chunk.py             causal attention and its three gradients: chunk by chunk, the state in registers
chunk_denominator.py denominators, where chunk.py has no registers left for them
chunk_state.py       the state of each split of keys (or queries)
state_apply.py       rows times a finished state: bidirectional and cross attention, and their gradients
bwd_preprocess.py    what the backward needs for each query row
decode.py            one token a row: the state is read once and written once
window_rows.py       of heads with a window: which rows see each other, and with what weight
window_band.py       narrow windows: tiles of rows and the tiles that their windows reach
window_wide.py       wide windows: whole chunks through states, the edges as squares
window_decode.py     one token a row: the last keys and values, moved up by one place
windowed.py          which of these make up a forward, a backward and a step
stepping.py          one token a row of both kinds of heads
configs.py           block sizes, a fixed table
partition.py         how long splits are
padding.py           how tensors must be aligned
kernels.py           the kernels of one call as methods
run.py               which kernels make up a forward and a backward
op.py                the library op

What it shares with the backend hopper (launch cache, splits, state scan) is in ops/gpu.
"""
