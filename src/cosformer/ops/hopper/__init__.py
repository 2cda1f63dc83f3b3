"""The operator on Hopper GPUs (H100, H200), in Gluon. Imported only when it is chosen.

support.py   what it can do, and for which versions of Triton
tiles.py     what every kernel does with its tiles: where they lie, how they come and go, their phases
pairs.py     ReLU, phases and masks of two numbers at a time
denominators.py  z, summed up by products
forward.py   causal attention: one walk, the state in registers
queries.py   the gradient of q in causal attention
keys.py      the gradients of k and v in causal attention
states.py    the state of a stretch of rows
fold.py      sums over heads that share a key head
apply.py     bidirectional and cross attention; apply_gradients.py: their gradients
documents.py packed documents as one list of tiles; listing.py starts what makes it
whole.py     bidirectional attention of packed documents, state and rows by the same block;
             whole_gradients.py: its gradients
squares.py   the same of documents of one tile, and their gradients: squares instead of states
cutting.py   how sequences are cut so that the whole GPU has work
launch.py    what the copy engine must know of a tensor; Triton's launcher without its binder
tape.py      calls written down once and played again
call.py      the kernels of one call as methods
op.py        the library's ops, and their gradients
run.py       which kernels make up a forward and a backward
"""
