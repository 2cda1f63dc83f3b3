"""The operator on CUDA GPUs, in plain Triton. Imported only when it is chosen.

rows.py      what every kernel does with a row: where it lies, its phase, how it is read
walk.py      causal attention and its three gradients: chunk by chunk, the state in registers
denominators.py  what divides, where a walk has no registers left for it
weigh.py     what the backward needs of every row of queries
states.py    the state of a stretch of keys (or queries), and running sums of such states
apply.py     queries against a finished state: bidirectional and cross attention
decode.py    one token a row: the state is read once and written once
window_rows.py   of heads with a window: which rows see each other, and with what weight
window_band.py   narrow windows: tiles of rows and the tiles that their windows reach
window_wide.py   wide windows: whole chunks through states, the edges as squares
window_decode.py one token a row: the last keys and values, moved up by one place
windowed.py  which of these make up a forward, a backward and a step
configs.py   block sizes, a fixed table
pieces.py    how a sequence is cut so that the whole GPU has work
padding.py   how tensors must lie
carried.py   states on their way between kernels
launching.py Triton's innermost launcher
tape.py      calls written down once and played again
kernels.py   the kernels of one call as methods
run.py       which kernels make up a forward and a backward
op.py        all of it as an op of the library
"""
