"""The operator on Hopper GPUs (H100, H200), in Gluon. Imported only when it is chosen.

support.py           which calls, GPUs and versions of Triton it serves
tiles.py             tiles in shared memory: layouts, TMA loads and stores, phases
bf16x2.py            ReLU, phases and masks on two bfloat16 at a time
partial_sums.py      z by matrix products
state.py             S and z in registers and in shared memory
chunk_fwd.py         causal attention: chunk by chunk, the state in registers
chunk_bwd_dq.py      the gradient of q in causal attention
chunk_bwd_dkv.py     the gradients of k and v in causal attention
chunk_state.py       the state of each split
head_group_sum.py    sums over query heads that share a key head
state_apply.py       bidirectional and cross attention; state_apply_bwd.py: their gradients
tile_list.py         packed documents as one list of tiles; tile_list_launch.py launches its kernels
tile_access.py       how kernels find their tiles
varlen_bidir_fwd.py  bidirectional attention of packed documents: state and rows in one kernel
varlen_bidir_bwd.py  its gradients
varlen_tiles.py      what both go through: loads of their steps, and the state
varlen_single_tile_fwd.py, varlen_single_tile_bwd.py  the same for documents of one tile, without states
band_*.py            heads with windows of up to 65 tokens, causally 129: tiles, forward, dq, dk and dv
ring_*.py            those of up to 256
window_*.py          wider ones, through states
band_run.py, window_run.py  which of these calls they serve, and their launches
partition.py         how long splits are
launch_plan.py       TMA descriptors; launch plans of kernels that take them
call.py              one call: tensors, sizes, options, splits
kernels.py           the kernels of one call as methods
run.py               which kernels make up a forward and a backward
op.py                the library op

What it shares with the backend triton (launch cache, splits, state scan) is in ops/gpu.
"""
