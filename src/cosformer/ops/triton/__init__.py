"""The operator on CUDA GPUs, in plain Triton. Imported only when it is chosen.

chunk.py             causal attention and its three gradients: chunk by chunk, the state in registers
chunk_denominator.py denominators, where chunk.py has no registers left for them
chunk_state.py       the state of each split of keys (or queries)
state_apply.py       rows times a finished state: bidirectional and cross attention, and their gradients
bwd_preprocess.py    what the backward needs for each query row
decode.py            one token a row: the state is read once and written once
stepping.py          one token a row of both kinds of heads
configs.py           block sizes, a fixed table
partition.py         how long splits are
kernels.py           the kernels of one call as methods
run.py               which kernels make up a forward and a backward
op.py                the library op

What every kernel does with a block of rows, and the table of the four outputs, is in ops/gpu/rows.py; heads
with a window are in ops/gpu/windows, for this backend and for hopper.
"""
