"""Linear time and memory in plain PyTorch, on any device: the CPU backend, and the readable twin of the GPU
kernels.

attention.py  heads without a window: the maths, forward and backward
plan.py       the steps along a sequence, and what each reads
workspace.py  where temporaries lie
residual.py   what rounding leaves where a gradient cancels
correction.py takes it out again, of heads without a window
documents.py  packed documents
op.py         all of it as an op of the library
"""
