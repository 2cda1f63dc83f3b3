"""The operator on CUDA GPUs, in plain Triton. Imported only when it is chosen.

rows.py      what every kernel does with a row: where it lies, its phase, how it is read
walk.py      causal attention and its three gradients: chunk by chunk, the state in registers
states.py    the state of a stretch of keys (or queries), and running sums of such states
apply.py     queries against a finished state: bidirectional and cross attention
decode.py    one token a row: the state is read once and written once
configs.py   block sizes, a fixed table
pieces.py    how a sequence is cut so that the whole GPU has work
run.py       which kernels make up a forward and a backward
"""
