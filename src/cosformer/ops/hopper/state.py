"""The state (S, z) of a split in registers, in shared memory and in global memory.

S = sum_j phi(b_j) c_j^T is two matrices [W, W] of float32, one with the cosines and one with the sines; z is
PARTIALS partial sums of each (partial_sums.py). Functions of one kernel file that another needs as well are
here, so that the kernels differ only in what they compute.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from cosformer.ops.hopper.partial_sums import PARTIALS, alloc_partials, load_z_columns, partials_layout
from cosformer.ops.hopper.tiles import alloc_smem, matrix_pointers, mma_layout, row_slice


@gluon.jit
def zero_state(W: gl.constexpr, WARPS: gl.constexpr):
    """An empty state in registers."""
    s = gl.zeros([W, W], gl.float32, mma_layout(W, W, WARPS))
    z = gl.zeros([W, PARTIALS], gl.float32, partials_layout(W, WARPS))
    return s, s, z, z


@gluon.jit
def initial_state(
    h0, z0, slot, head, h0_stride, z0_stride, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, USE_INITIAL_STATE: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The state of a head in a slot of h0 and z0, in registers. An empty one without USE_INITIAL_STATE, or
    with slot < 0."""
    z_cos = gl.zeros([W, PARTIALS], gl.float32, partials_layout(W, WARPS))
    z_sin = z_cos
    if USE_INITIAL_STATE:
        index = (slot * HEADS + head).to(gl.int64)
        at, in_state = matrix_pointers(h0 + index * h0_stride, D, DV, W, mma_layout(W, W, WARPS))
        in_state = in_state & (slot >= 0)
        s_cos = gl.load(at, mask=in_state, other=0.0)
        s_sin = gl.load(at + D * DV, mask=in_state, other=0.0)
        if slot >= 0:
            z_cos = load_z_columns(z0 + index * z0_stride, D, W, WARPS)
            z_sin = load_z_columns(z0 + index * z0_stride + D, D, W, WARPS)
    else:
        s_cos = gl.zeros([W, W], gl.float32, mma_layout(W, W, WARPS))
        s_sin = s_cos
    return z_cos, z_sin, s_cos, s_sin


@gluon.jit
def store_final_state(
    ht, zt, index, ht_stride, zt_stride, s_cos, s_sin, z_cos, z_sin, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """A state from registers to global memory, S and z in tensors of their own."""
    index = index.to(gl.int64)
    at, in_state = matrix_pointers(ht + index * ht_stride, D, DV, W, mma_layout(W, W, WARPS))
    gl.store(at, s_cos, mask=in_state)
    gl.store(at + D * DV, s_sin, mask=in_state)
    feature = gl.arange(0, W, layout=row_slice(partials_layout(W, WARPS)))
    z_pointers = zt + index * zt_stride + feature
    gl.store(z_pointers, gl.sum(z_cos, axis=1), mask=feature < D)
    gl.store(z_pointers + D, gl.sum(z_sin, axis=1), mask=feature < D)


@gluon.jit
def alloc_state(W: gl.constexpr):
    """Shared memory for S and z in bfloat16, to be indexed with `opaque_zero`."""
    return alloc_smem(W, W), alloc_smem(W, W), alloc_partials(W), alloc_partials(W)


@gluon.jit
def alloc_state_z_rows(W: gl.constexpr):
    """As `alloc_state`, with z as PARTIALS rows instead of columns."""
    return alloc_smem(W, W), alloc_smem(W, W), alloc_smem(PARTIALS, W), alloc_smem(PARTIALS, W)


@gluon.jit
def index_state(smem, i):
    """The four matrices of a state in shared memory."""
    return smem[0].index(i), smem[1].index(i), smem[2].index(i), smem[3].index(i)


@gluon.jit
def copy_state_to_smem(s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile):
    """A state from registers to shared memory, in bfloat16. The caller puts a fence after it."""
    s_cos_tile.store(s_cos.to(gl.bfloat16))
    s_sin_tile.store(s_sin.to(gl.bfloat16))
    z_cos_tile.store(z_cos.to(gl.bfloat16))
    z_sin_tile.store(z_sin.to(gl.bfloat16))


@gluon.jit
def add_to_state(b_cos, b_sin, c, selector, s_cos, s_sin, z_cos, z_sin, use_acc):
    """Starts the products S + phi(b)^T c and z + phi(b)^T selector, and does not wait for them. b_cos, b_sin:
    tiles [CHUNK, W] in shared memory. use_acc: False if S and z count as zero."""
    s_cos = warpgroup_mma(b_cos.permute((1, 0)), c, s_cos, use_acc=use_acc, is_async=True)
    z_cos = warpgroup_mma(b_cos.permute((1, 0)), selector, z_cos, use_acc=use_acc, is_async=True)
    s_sin = warpgroup_mma(b_sin.permute((1, 0)), c, s_sin, use_acc=use_acc, is_async=True)
    z_sin = warpgroup_mma(b_sin.permute((1, 0)), selector, z_sin, use_acc=use_acc, is_async=True)
    return s_cos, s_sin, z_cos, z_sin
