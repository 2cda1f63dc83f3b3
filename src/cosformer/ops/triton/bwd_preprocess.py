"""What the backward needs for each query row (rows.py): inv_den = 1 / max(d, eps), delta = -(g . o).

One program takes BT tokens of one head. It reads g and o (2 tensors) and writes two numbers a row. It is a
kernel of its own because sums along rows would slow the chunk kernels down. Bidirectional attention computes
both beside dq, where one program has all columns (state_apply.py).
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import inv_den_and_delta, load_rows


@triton.jit(do_not_specialize=["length", "vec_stride_b", "vec_stride_h"])
def bwd_preprocess(
    g_ptr, o_ptr, den_ptr, inv_den_ptr, delta_ptr, length, eps, stride_gb, stride_gt, stride_gh, stride_ob,
    stride_ot, stride_oh, vec_stride_b, vec_stride_h,
    HEADS: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    head = (pid % HEADS).to(tl.int64)
    row_blocks = tl.cdiv(length, BT)
    row = (pid // HEADS // row_blocks).to(tl.int64)
    block_begin = (pid // HEADS % row_blocks).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    features = tl.arange(0, BV)
    in_split = block_begin + rows < length
    PADDED: tl.constexpr = DV != BV
    g = load_rows(
        g_ptr + row * stride_gb + block_begin * stride_gt + head * stride_gh, stride_gt, rows, in_split,
        features, DV, PADDED,
    )  # fmt: skip
    o = load_rows(
        o_ptr + row * stride_ob + block_begin * stride_ot + head * stride_oh, stride_ot, rows, in_split,
        features, DV, PADDED,
    )  # fmt: skip
    vec_offset = row * vec_stride_b + head * vec_stride_h + block_begin + rows
    den = tl.load(den_ptr + vec_offset, mask=in_split, other=1.0)
    inv_den, delta = inv_den_and_delta(g, o, den, eps)
    tl.store(inv_den_ptr + vec_offset, inv_den, mask=in_split)
    tl.store(delta_ptr + vec_offset, delta, mask=in_split)
