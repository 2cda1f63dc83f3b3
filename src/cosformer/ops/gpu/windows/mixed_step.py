"""One token a row, heads with and without a window in one launch: what is carried is read once, and of a
head with a window one place is written. A head without a window is computed as in recurrent_step
(ops/triton/decode.py); a head with one keeps its last W - 1 keys and values, that of position j in place
j mod (W - 1), so that the new one, of position i, takes the place of the oldest:

    o = sum_j c(i - j) (q' . k'_j) v_j / max(sum_j c(i - j) (q' . k'_j), eps)       j = i - W + 1 ... i

Programs, in this order: one for each row and each head without a window; one for each row and each head
with a window of more than SMALL places, the longest windows first, so that those that begin last are short;
one for each row and SMALLS heads with a shorter one. Nothing that a program reads is written by another, but
for the position of its row, which the last of its programs may advance: each adds one to a count in the upper
bits when it has done with the position, which is in the lower ones.

A step waits for memory, so few waits follow one another. Windows and places of the long heads may come with
the arguments (IN_ARGS), not from a table: a trip less before the first key is asked for. The new token is
added at the end, so that no exchange between threads stands before that either. Places are summed thread by
thread, and between threads once at the end, not after every tile.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import phases, relu

ENTRIES = 16  # heads of which windows and places fit into the arguments
COUNT = tl.constexpr(2**48)  # what a program adds to its row's position when it has done with it


@triton.jit
def entry_of(
    at, TABLE, E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13, E14, E15, IN_ARGS: tl.constexpr
):
    """Head, window, and first place in the state, of entry `at`."""
    if IN_ARGS:
        e = tl.where(at == 1, E1, E0)
        e = tl.where(at == 2, E2, e)
        e = tl.where(at == 3, E3, e)
        e = tl.where(at == 4, E4, e)
        e = tl.where(at == 5, E5, e)
        e = tl.where(at == 6, E6, e)
        e = tl.where(at == 7, E7, e)
        e = tl.where(at == 8, E8, e)
        e = tl.where(at == 9, E9, e)
        e = tl.where(at == 10, E10, e)
        e = tl.where(at == 11, E11, e)
        e = tl.where(at == 12, E12, e)
        e = tl.where(at == 13, E13, e)
        e = tl.where(at == 14, E14, e)
        e = tl.where(at == 15, E15, e)
    else:
        e = tl.load(TABLE + at)
    return unpacked(e)


@triton.jit
def unpacked(e):
    """Bit 62 is set in all of them, so that each is an int64 whatever it holds."""
    return e & 0xFFF, ((e >> 12) & 0xFFFFFF).to(tl.int32), (e >> 36) & 0x3FFFFFF


@triton.jit
def cosine(distance, window):
    """cos((pi/2) d/W) for d in [0, W]; the polynomials of `phases`, but beyond W/2 of the distance that is
    left, which is exact, and without a division for each."""
    far = 2 * distance > window
    x = tl.where(far, window - distance, distance).to(tl.float32) * (1.0 / window.to(tl.float32))
    y = x * x
    c = 9.0362987248227e-04 * y - 2.086007036268711e-02
    c = c * y + 2.5366920232772827e-01
    c = c * y - 1.2337005138397217
    c = c * y + 1.0
    s = -4.602163098752499e-03 * y + 7.968021929264069e-02
    s = s * y - 6.459634900093079e-01
    s = s * y + 1.5707963705062866
    return tl.where(far, s * x, c)


@triton.jit
def sums_of_rows(x, PARTS: tl.constexpr):
    """[R, W] to [PARTS, W]: only rows that one thread holds are added."""
    return tl.sum(tl.reshape(x, (x.shape[0] // PARTS, PARTS, x.shape[1])), 0)


@triton.jit
def inverse(total, eps):
    return 1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def distance_of(place, oldest, places):
    """How many tokens before the new one the key in `place` is. The oldest is in place `oldest`; those in the
    places before it are newer than those behind it."""
    return tl.where(place < oldest, oldest, oldest + places) - place


@triton.jit
def long_window(
    Q, NEW_K, NEW_V, OUT, KEYS, VALUES, window, position, there, eps, q_h, o_h, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One head of one row, BR places at a time; a window of at least two. The next ones are asked for before
    those that have come are computed."""
    places = window - 1
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    groups = tl.arange(0, GROUPS)
    r = tl.arange(0, BR)
    at_k = r[:, None] * D + of_d[None, :]
    at_v = r[:, None] * DV + of_v[None, :]
    in_d = (of_d < D)[None, :]
    in_v = (of_v < DV)[None, :]
    k = tl.load(KEYS + at_k, mask=(r < places)[:, None] & in_d, other=0.0)
    v = tl.load(VALUES + at_v, mask=(r < places)[:, None] & in_v, other=0.0)
    q0 = relu(tl.load(Q + of_d, mask=of_d < D, other=0.0))
    new_k = tl.load(NEW_K + of_d, mask=(of_d < D) & there, other=0.0)
    new_v = tl.load(NEW_V + of_v, mask=(of_v < DV) & there, other=0.0)
    if GROUP == 1:  # one dimension less: what is summed stays where it is
        acc = tl.zeros((PARTS, BV), tl.float32)
        total = tl.zeros((BR,), tl.float32)
    else:
        acc = tl.zeros((GROUPS, PARTS, BV), tl.float32)
        total = tl.zeros((GROUPS, BR), tl.float32)
    oldest = (position % places).to(tl.int32)
    of_k, of_values = KEYS + at_k, VALUES + at_v
    for first in range(0, places, BR):
        of_k += BR * D
        of_values += BR * DV
        left = places - first - BR  # behind these
        next_k = tl.load(of_k, mask=(r < left)[:, None] & in_d, other=0.0)
        next_v = tl.load(of_values, mask=(r < left)[:, None] & in_v, other=0.0)
        c = cosine(tl.maximum(distance_of(first + r, oldest, places), 0), window)  # no key behind the last
        rectified = relu(k)
        wide_v = v.to(tl.float32)
        if GROUP == 1:
            w = tl.sum(rectified * q0[None, :], 1) * c
            total += w
            acc += sums_of_rows(w[:, None] * wide_v, PARTS)
        else:
            for g in range(GROUP):
                q = relu(tl.load(Q + g * q_h + of_d, mask=of_d < D, other=0.0))
                w = tl.sum(rectified * q[None, :], 1) * c
                mine = groups == g
                total += tl.where(mine[:, None], w[None, :], 0.0)
                part = sums_of_rows(w[:, None] * wide_v, PARTS)
                acc += tl.where(mine[:, None, None], part[None, :, :], 0.0)
        k, v = next_k, next_v
    tl.debug_barrier()  # every thread has read its part
    tl.store(KEYS + oldest * D + of_d, new_k, mask=of_d < D)
    tl.store(VALUES + oldest * DV + of_v, new_v, mask=of_v < DV)
    newest = relu(new_k)
    wide_new = new_v.to(tl.float32)
    if GROUP == 1:
        w = tl.sum(newest * q0, 0)
        out = (tl.sum(acc, 0) + w * wide_new) * inverse(tl.sum(total, 0) + w, eps)
        tl.store(OUT + of_v, out.to(OUT.dtype.element_ty), mask=of_v < DV)
    else:
        real = (groups < GROUP)[:, None]
        q = relu(tl.load(Q + groups[:, None] * q_h + of_d[None, :], mask=real & in_d, other=0.0))
        w = tl.sum(newest[None, :] * q, 1)
        out = (tl.sum(acc, 1) + w[:, None] * wide_new[None, :]) * inverse(tl.sum(total, 1) + w, eps)[:, None]
        to = OUT + groups[:, None] * o_h + of_v[None, :]
        tl.store(to, out.to(OUT.dtype.element_ty), mask=real & in_v)


@triton.jit
def small_windows(
    Q, K, V, OUT, KEYS, VALUES, head, window, place, position, real, there, eps, q_h, k_h, v_h, o_h,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, SMALL: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """The `real` ones of some heads of one row, each with a window of up to SMALL places."""
    places = tl.where(real, window - 1, 0)[:, None]
    r = tl.arange(0, SMALL)[None, :]
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    in_d = real[:, None] & (of_d < D)[None, :]
    in_v = real[:, None] & (of_v < DV)[None, :]
    stored = r < places
    at_k = KEYS + (place[:, None] + r)[:, :, None] * D + of_d[None, None, :]
    at_v = VALUES + (place[:, None] + r)[:, :, None] * DV + of_v[None, None, :]
    k = tl.load(at_k, mask=stored[:, :, None] & (of_d < D)[None, None, :], other=0.0)
    v = tl.load(at_v, mask=stored[:, :, None] & (of_v < DV)[None, None, :], other=0.0)
    new_k = tl.load(K + (head * k_h)[:, None] + of_d[None, :], mask=in_d & there, other=0.0)
    new_v = tl.load(V + (head * v_h)[:, None] + of_v[None, :], mask=in_v & there, other=0.0)
    oldest = (position % tl.maximum(places, 1)).to(tl.int32)
    c = cosine(tl.maximum(distance_of(r, oldest, places), 0), window[:, None])
    rectified = relu(k)
    wide_v = v.to(tl.float32)
    for g in range(GROUP):
        of_q = (head * GROUP + g) * q_h
        q = relu(tl.load(Q + of_q[:, None] + of_d[None, :], mask=in_d, other=0.0))
        w = tl.sum(rectified * q[:, None, :], 2) * c
        own = tl.sum(relu(new_k) * q, 1)
        out = tl.sum(w[:, :, None] * wide_v, 1) + own[:, None] * new_v.to(tl.float32)
        out *= inverse(tl.sum(w, 1) + own, eps)[:, None]
        to = OUT + ((head * GROUP + g) * o_h)[:, None] + of_v[None, :]
        tl.store(to, out.to(OUT.dtype.element_ty), mask=in_v)
    tl.debug_barrier()  # every thread has read its part
    to = place[:, None] + oldest
    tl.store(KEYS + to * D + of_d[None, :], new_k, mask=in_d & (places > 0))
    tl.store(VALUES + to * DV + of_v[None, :], new_v, mask=in_v & (places > 0))


@triton.jit
def plain_head(
    Q, K, V, OUT, S, Z, head, cos, sin, there, eps, q_h, k_h, v_h, o_h, GROUP: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One head of one row without a window: S [2, D, DV] and z [2, D], cosines above sines, in blocks of BC
    columns."""
    half = tl.arange(0, 2)
    features = tl.arange(0, BD)
    in_features = features < D
    real = (half[:, None] >= 0) & in_features[None, :]
    phase = tl.where(half == 0, cos, sin)[:, None]
    of_z = half[:, None] * D + features[None, :]
    for first in range(0, DV, BC):
        columns = first + tl.arange(0, BC)
        in_columns = columns < DV
        at = of_z[:, :, None] * DV + columns[None, None, :]
        in_state = real[:, :, None] & in_columns[None, None, :]
        s = tl.load(S + at, mask=in_state, other=0.0)
        z = tl.load(Z + of_z, mask=real, other=0.0)
        k = relu(tl.load(K + head * k_h + features, mask=in_features & there, other=0.0))
        v = tl.load(V + head * v_h + columns, mask=in_columns & there, other=0.0).to(tl.float32)
        of_k = phase * k[None, :]
        z += of_k
        s += of_k[:, :, None] * v[None, None, :]
        tl.store(S + at, s, mask=in_state)
        for g in range(GROUP):
            h = head * GROUP + g
            q = relu(tl.load(Q + h * q_h + features, mask=in_features, other=0.0))
            of_q = phase * q[None, :]
            den = tl.sum(tl.sum(of_q * z, 0), 0)
            n = tl.sum(tl.sum(of_q[:, :, None] * s, 0), 0) * inverse(den, eps)
            tl.store(OUT + h * o_h + columns, n.to(OUT.dtype.element_ty), mask=in_columns)
        if first + BC >= DV:
            tl.debug_barrier()  # several threads may hold the same numbers of z: all have read them
            tl.store(Z + of_z, z, mask=real)


@triton.jit(
    do_not_specialize=[
        "E0", "E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "E10", "E11", "E12", "E13", "E14", "E15",
        "batch", "plain", "longs", "smalls", "mask_stride",
    ]
)  # fmt: skip
def mixed_step(
    Q, K, V, OUT, KEYS, VALUES, S, Z, POSITIONS, MASK, TABLE, E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10,
    E11, E12, E13, E14, E15, batch, plain, longs, smalls, horizon, eps, q_b, q_h, k_b, k_h, v_b, v_h, o_b,
    o_h, keys_b, values_b, s_stride, z_stride, mask_stride,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, MASKED: tl.constexpr,
    IN_ARGS: tl.constexpr, ADVANCE: tl.constexpr, HAS_PLAIN: tl.constexpr, BR: tl.constexpr,
    SMALL: tl.constexpr, SMALLS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """S [B, plain, 2, D, DV], Z [B, plain, 2, D], KEYS [B, R, D], VALUES [B, R, DV], POSITIONS [B]. TABLE
    [plain + longs + smalls]: the packed entries of `step_entries` (step.py), or, IN_ARGS, E0 ... E15."""
    unit = tl.program_id(0) // batch
    row = (tl.program_id(0) % batch).to(tl.int64)
    position = tl.load(POSITIONS + row, volatile=True) & (COUNT - 1)
    there = tl.load(MASK + row * mask_stride) != 0 if MASKED else True
    Q += row * q_b
    K += row * k_b
    V += row * v_b
    OUT += row * o_b
    KEYS += row * keys_b
    VALUES += row * values_b
    if unit < plain:
        if HAS_PLAIN:
            cos, sin = phases(position.to(tl.int32), horizon, tl.float32)
            head, _, _ = entry_of(
                unit, TABLE, E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13, E14, E15, IN_ARGS
            )  # fmt: skip
            sums = row * plain + unit
            plain_head(
                Q, K, V, OUT, S + sums * s_stride, Z + sums * z_stride, head, cos, sin, there, eps, q_h, k_h,
                v_h, o_h, GROUP, D, DV, BD, BC,
            )  # fmt: skip
    elif unit < plain + longs:
        head, window, place = entry_of(
            unit, TABLE, E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13, E14, E15,
            IN_ARGS,
        )  # fmt: skip
        long_window(
            Q + head * GROUP * q_h, K + head * k_h, V + head * v_h, OUT + head * GROUP * o_h,
            KEYS + place * D, VALUES + place * DV, window, position, there, eps, q_h, o_h, GROUP, GROUPS, D,
            DV, BR, BD, BV, PARTS,
        )  # fmt: skip
    else:
        some = (unit - plain - longs) * SMALLS + tl.arange(0, SMALLS)
        real = some < smalls
        heads, windows, places = unpacked(tl.load(TABLE + plain + longs + some, mask=real, other=1 << 12))
        small_windows(
            Q, K, V, OUT, KEYS, VALUES, heads, windows, places, position, real, there, eps, q_h, k_h, v_h,
            o_h, GROUP, D, DV, SMALL, BD, BV,
        )  # fmt: skip
    if ADVANCE:
        tl.debug_barrier()  # every thread has read the position
        programs = (tl.num_programs(0) // batch).to(tl.int64)
        before = tl.atomic_add(POSITIONS + row, COUNT, sem="relaxed")
        last = before // COUNT == programs - 1
        tl.atomic_add(POSITIONS + row, 1 - programs * COUNT, mask=last, sem="relaxed")
