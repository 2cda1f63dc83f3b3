"""Whether the arguments of a call fit together. Errors say what was wrong, what was expected, what to do."""

from numbers import Integral

import torch
from torch import Tensor

from cosformer.ops.checks import positive, readable, within_horizon
from cosformer.ops.packing import check_documents, document_bounds
from cosformer.ops.state import CosformerState
from cosformer.ops.windows import Windows, check_windows, state_rows

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_lengths(
    lengths: Tensor, rows: int, columns: int, device: torch.device, cu_seqlens: Tensor | None
) -> None:
    """Whether `lengths` can be how many of these columns belong to each row."""
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"lengths must be an integer tensor [B], but got {_described(lengths)}.")
    if lengths.shape != (rows,) or lengths.device != device:
        raise ValueError(
            f"lengths must have shape [B] = [{rows}] on {device}, but got {_shape(lengths)} on "
            f"{lengths.device}."
        )
    if cu_seqlens is not None:
        raise ValueError("lengths and cu_seqlens do not go together: a packed row has no padding.")
    if readable(lengths) and rows:
        least, most = (int(n) for n in lengths.aminmax())
        if least < 0 or most > columns:
            raise ValueError(
                f"lengths must be from 0 to Tk = {columns}, the columns of k, but got "
                f"{least if least < 0 else most}."
            )


def mask_of_lengths(lengths: Tensor, key_mask: Tensor | None, k: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    check_lengths(lengths, k.shape[0], k.shape[1], k.device, cu_seqlens)
    real = torch.arange(k.shape[1], device=k.device) < lengths[:, None]
    return real if key_mask is None else real & key_mask


def _described(x: object) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    query_offset: int | None,
    state: CosformerState | None,
) -> None:
    """Whether the tensors of a call fit together."""
    _check_tensors(q, k, v, state)
    if key_mask is not None:
        check_mask(key_mask, k)
    if cu_seqlens is not None:
        check_packing(cu_seqlens, q, k, key_mask, query_offset)
    if state is not None:
        _check_state(state, q, k, v, cu_seqlens)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, state: CosformerState | None) -> None:
    for name, x, layout in (
        ("q", q, "[B, Tq, H, D]"),
        ("k", k, "[B, Tk, Hk, D]"),
        ("v", v, "[B, Tk, Hk, Dv]"),
    ):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor {layout}, but got {type(x).__name__}.")
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions {layout}, but got shape {_shape(x)}.")
        if x.dtype not in _DTYPES:
            raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, but got {x.dtype}.")
        if x.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, but got layout {x.layout}.")
    batch, tq, heads, dim = q.shape
    (k_batch, tk, k_heads, k_dim), (v_batch, tv, v_heads, v_dim) = k.shape, v.shape
    for name, x, size in (("k", k, k_batch), ("v", v, v_batch)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have q's dtype {q.dtype}, but got {x.dtype}; cast one of them.")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, but got {x.device}.")
        if size != batch:
            raise ValueError(f"{name} must have q's batch size {batch}, but got {size} (shape {_shape(x)}).")
    if tk != tv:
        raise ValueError(f"v must have k's length {tk}, but got {tv} (shape {_shape(v)}).")
    if k_heads != v_heads:
        raise ValueError(f"v must have k's {k_heads} heads, but got {v_heads} (shape {_shape(v)}).")
    if k_dim != dim:
        raise ValueError(f"k must have q's head size {dim}, but got {k_dim} (shape {_shape(k)}).")
    for name, x, axis, size in (
        ("q", q, "batch", batch),
        ("q", q, "number of heads", heads),
        ("q", q, "head size", dim),
        ("k", k, "number of heads", k_heads),
        ("v", v, "head size", v_dim),
    ):
        if size == 0:
            raise ValueError(f"{name} must have a {axis} of at least 1, but got shape {_shape(x)}.")
    if heads % k_heads != 0:
        raise ValueError(
            f"q must have a multiple of k's {k_heads} heads, but got {heads} (shape {_shape(q)})."
        )
    if tq == 0:
        raise ValueError(f"q must have a length of at least 1, but got shape {_shape(q)}.")
    if tk == 0 and state is None:
        raise ValueError(
            f"k must have a length of at least 1 where no state is given, but got shape {_shape(k)}."
        )


def check_mask(key_mask: Tensor, k: Tensor) -> None:
    if not isinstance(key_mask, Tensor):
        raise TypeError(f"key_mask must be a bool tensor [B, Tk], but got {type(key_mask).__name__}.")
    if key_mask.dtype != torch.bool:
        raise TypeError(
            f"key_mask must be bool, True = may be attended to, but got {key_mask.dtype}; "
            "for a 0/1 mask pass mask.bool()."
        )
    if key_mask.shape != k.shape[:2]:
        raise ValueError(f"key_mask must have shape [B, Tk] = {_shape(k)[:2]}, but got {_shape(key_mask)}.")
    if key_mask.device != k.device:
        raise ValueError(f"key_mask must be on k's device {k.device}, but got {key_mask.device}.")


def _check_state(state: CosformerState, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> None:
    if not isinstance(state, CosformerState):
        raise TypeError(f"state must be a CosformerState, but got {type(state).__name__}.")
    rows = check_rows(state.batch, q, cu_seqlens)
    windows = check_windows(state.windows, k.shape[2])
    plain = k.shape[2] if windows is None else windows.count(0)
    expected = (rows, plain, 2, k.shape[3], v.shape[3])
    if tuple(state.numerator.shape) != expected or tuple(state.denominator.shape) != expected[:-1]:
        raise ValueError(
            f"state must have a numerator [B, Hk, 2, D, Dv] = {list(expected)} for these k and v, but got "
            f"{_shape(state.numerator)}; it comes from a call with other heads or head sizes."
        )
    if state.numerator.device != q.device:
        raise ValueError(
            f"state must be on q's device {q.device}, but got {state.numerator.device}; "
            "use state.to(q.device)."
        )
    accum_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    for x in (state.numerator, state.denominator):
        if x.dtype != accum_dtype:
            raise TypeError(f"state must be {accum_dtype} for {q.dtype} inputs, but got {x.dtype}.")
    carried = state_rows(windows)
    past = (("keys", state.keys, k.shape[3]), ("values", state.values, v.shape[3]))
    for name, y, size in past if windows is not None else ():
        if y is None or tuple(y.shape) != (rows, carried, size) or y.dtype != q.dtype or y.device != q.device:
            got = "none" if y is None else f"{y.dtype} {_shape(y)} on {y.device}"
            raise ValueError(
                f"state must have {name} [B, R, .] = {[rows, carried, size]} of {q.dtype} on {q.device} for "
                f"these windows and inputs, but got {got}."
            )
    if state.positions.dtype != torch.int64 or state.positions.shape != (rows,):
        raise ValueError(
            f"state must have int64 positions [{rows}], but got {state.positions.dtype} "
            f"{_shape(state.positions)}."
        )


def check_rows(batch: int, q: Tensor, cu_seqlens: Tensor | None) -> int:
    """The number of rows that a state of this batch must have, and has."""
    rows, kind = (q.shape[0], "rows of the batch")
    if cu_seqlens is not None:
        rows, kind = (cu_seqlens.shape[0] - 1, "documents of cu_seqlens")
    if batch != rows:
        raise ValueError(f"state must have one row for each of the {rows} {kind}, but got {batch}.")
    return rows


def check_packing(
    cu_seqlens: Tensor, q: Tensor, k: Tensor, key_mask: Tensor | None, query_offset: int | None
) -> None:
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens must be an integer tensor [N + 1], but got {type(cu_seqlens).__name__}.")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be int32 or int64, but got {cu_seqlens.dtype}.")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(
            f"cu_seqlens must be one-dimensional with at least 2 entries, but got shape {_shape(cu_seqlens)}."
        )
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens must be on q's device {q.device}, but got {cu_seqlens.device}.")
    if q.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens needs a batch of 1 (documents packed into one row), but got {q.shape[0]}."
        )
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"cu_seqlens needs q and k of the same length, but got Tq = {q.shape[1]} and Tk = {k.shape[1]}."
        )
    if key_mask is not None:
        raise ValueError("key_mask and cu_seqlens do not go together: leave padding out of a packed row.")
    if query_offset is not None and query_offset != 0:
        raise ValueError(f"query_offset must be left out with cu_seqlens, but got {query_offset}.")


def offset_of(query_offset: int | None, q: Tensor, k: Tensor, causal: bool) -> int:
    if query_offset is None:
        return k.shape[1] - q.shape[1] if causal else 0
    if isinstance(query_offset, torch.SymInt):
        return query_offset
    if isinstance(query_offset, bool) or not isinstance(query_offset, Integral):
        raise TypeError(f"query_offset must be an int, but got {type(query_offset).__name__}.")
    return int(query_offset)


def horizon_of(horizon: float | None, state: CosformerState | None, return_state: bool) -> float | None:
    if horizon is None:
        if state is not None or return_state:
            raise ValueError(
                "horizon must be given together with state or return_state: a carried state is only right "
                "for the M it was made with. Choose the longest length the text may reach."
            )
        return None
    m = positive("horizon", horizon)
    if state is not None and state.horizon != m:
        raise ValueError(f"state was made with horizon {state.horizon:g}, but this call has horizon {m:g}.")
    return m


def check_distances(
    q: Tensor,
    k: Tensor,
    causal: bool,
    offset: int,
    horizon: float | None,
    state: CosformerState | None,
    cu_seqlens: Tensor | None,
    windows: Windows | None,
) -> None:
    """No query may be further than M from a key it sees: there the weights would turn negative."""
    tq, tk = q.shape[1], k.shape[1]
    seen = 0 if state is None else state.seen
    if windows is not None and state is not None and cu_seqlens is None and offset < 0:
        raise ValueError(
            f"query_offset must be at least 0 where heads with a window meet a state, but it is {offset}: an "
            "earlier query would see keys that the state no longer holds."
        )
    if windows is not None and 0 not in windows:
        if cu_seqlens is not None and _can_look(q):
            document_bounds(cu_seqlens, tq)
        return
    if horizon is None:
        if cu_seqlens is None and offset == (tk - tq if causal else 0):
            return  # the lengths themselves: enough for every distance between them
        horizon = max(tq, tk)
    if cu_seqlens is not None:
        if _can_look(q):
            check_documents(cu_seqlens, tq, None if state is None else state.positions, horizon)
        return
    if causal and offset < -1 and seen > 0:
        raise ValueError(
            f"query_offset must be at least -1 where causal queries meet a state, but it is {offset}: an "
            "earlier query would see only a part of the past, and the state holds its sum."
        )
    back = seen + offset + tq - 1  # from the last query to the first key ever seen
    ahead = tk - 1 - offset if tk > 0 else -1 - offset  # from the first query to the last key
    within_horizon(back, horizon, seen + offset + tq - 1)
    if not causal:
        within_horizon(ahead, horizon, seen + offset)


def _can_look(q: Tensor) -> bool:
    """Bounds of documents are data. A compiled graph checks them when it runs; a CUDA graph cannot."""
    capturing = q.is_cuda and torch.cuda.is_current_stream_capturing()
    return not torch.compiler.is_compiling() and not capturing


def _shape(x: Tensor) -> list[int]:
    return list(x.shape)
