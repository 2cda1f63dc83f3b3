"""Multi-head attention around any registered mechanism."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.attention import Attention, State
from cosformer.nn.convolution import ShortConvolution
from cosformer.nn.gate import OutputGate
from cosformer.nn.norm import HeadRMSNorm
from cosformer.nn.projections import Projections
from cosformer.nn.state import ConvolvedState, TokenStep
from cosformer.ops.checks import flag
from cosformer.positions.base import Rotate

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard


class MultiheadAttention(Projections):
    """Projections and heads around a mechanism from `cosformer.attention`; self- and cross-attention.

        q, k, v = conv(Wq x), conv(Wk x), conv(Wv x)              the convolution where conv_size is given
        q, k    = rotate(norm(q)), rotate(norm(k))                the norms where qk_norm
        y       = Wo (norm(attention(q, k, v)) * act(Wg x + b))   the norm where output_norm, the gate where
                                                                  output_gate

    Args:
        embed_dim: width of the query and of the output.
        num_heads: query heads; embed_dim must be a multiple of it.
        attention: the mechanism, from `attention.build`.
        kdim, vdim: width of key and value, embed_dim unless given.
        num_kv_heads: key and value heads, num_heads unless given (grouped heads).
        causal: a position sees itself and earlier ones.
        bias: of the projections.
        conv_size: tokens that a `ShortConvolution` of q, k and v reads, or None; for self-attention.
        qk_norm: an RMS norm of each head's queries and keys, with a learned scale.
        output_norm: an RMS norm of each head's output, with a learned scale.
        output_gate: "silu", "sigmoid" or None; see `OutputGate`.
        norm_eps: of the norms.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: Attention,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
        conv_size: int | None = None,
        qk_norm: bool = False,
        output_norm: bool = False,
        output_gate: str | None = None,
        norm_eps: float = 1e-5,
    ):
        if not isinstance(attention, Attention):
            raise TypeError(
                "attention must be a mechanism, as cosformer.attention.build makes it, but got "
                f"{type(attention).__name__}."
            )
        reads = attention.traits.reads
        super().__init__(
            embed_dim,
            num_heads,
            kdim=kdim,
            vdim=vdim,
            num_kv_heads=num_kv_heads,
            bias=bias,
            reads=reads,
        )
        self.attention, self.causal = attention, flag("causal", causal)
        kv_width = self.num_kv_heads * self.head_dim
        # Inputs that the mechanism does not read are neither projected nor convolved nor normalised.
        self.widths = [kv_width if part in "kv" else embed_dim for part in "qkv" if part in reads]
        self.convolution = None
        if conv_size is not None:
            self.convolution = ShortConvolution(sum(self.widths), conv_size, causal=causal)

        def head_norm(wanted: bool) -> HeadRMSNorm | None:
            return HeadRMSNorm(self.head_dim, eps=norm_eps) if wanted else None

        self.q_norm = head_norm(flag("qk_norm", qk_norm) and "q" in reads)
        self.k_norm = head_norm(qk_norm and "k" in reads)
        self.output_norm = head_norm(flag("output_norm", output_norm))
        self.output_gate = None if output_gate is None else OutputGate(embed_dim, output_gate)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        rotate: Rotate | None = None,
        key_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        query_offset: int | None = None,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
        step: TokenStep | None = None,
        shard: "Shard | None" = None,
    ) -> tuple[Tensor, State | None]:
        """[B, Tq, embed_dim] and, with `return_state`, the state after this call's keys (else None): that of
        the mechanism, or a `ConvolvedState` around it.

        `rotate` is what a position does (its `rotation`) to the heads of q and k [B, T, heads, head_dim];
        `step` marks a call of one token per row after `state`, for which the mechanism has a faster method;
        with `shard`, the tokens are a part of a sequence that the ranks of a group share, and `lengths`
        are those of the whole sequence; the other arguments are the mechanism's.
        """
        if shard is not None:
            return self._over_group(query, rotate, lengths, shard), None
        q, k, v = self.project(query, key, value)
        inputs = None
        if self.convolution is not None:
            if key is not None:
                raise ValueError(
                    "key must be left out where conv_size is given: the convolution is for self-attention. "
                    "Build cross-attention without conv_size."
                )
            conv_state, state = _apart(state)
            where: dict[str, Any] = {"key_mask": key_mask, "lengths": lengths, "cu_seqlens": cu_seqlens}
            q, k, v, inputs = self._convolved(q, k, v, state=conv_state, return_state=return_state, **where)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotate is not None:
            q, k = rotate(q), rotate(k, key=True)
        after: State | None
        if step is not None:
            out, after = self.attention.attend_token(
                q, k, v, state, step.weights, step.seen, _of_attention(step.into)
            )
        else:
            result = self.attention(
                q,
                k,
                v,
                causal=self.causal,
                key_mask=key_mask,
                lengths=lengths,
                query_offset=query_offset,
                cu_seqlens=cu_seqlens,
                state=state,
                return_state=return_state,
            )
            out, after = result if return_state else (result, None)
        if after is not None and inputs is not None:
            after = ConvolvedState(after, inputs)
        if self.output_norm is not None:
            out = self.output_norm(out)
        if self.output_gate is not None:
            out = out * self.output_gate(query).view_as(out)
        return self.merge(out), after

    def _over_group(self, x: Tensor, rotate: Rotate | None, lengths: Tensor | None, shard: "Shard") -> Tensor:
        """Self-attention over a sequence group. Keys and values are computed first, so that communication
        overlaps with the queries and the gate."""
        if self.convolution is not None:
            q, k, v, _ = self._convolved(*self.project(x, None, None), shard=shard, lengths=lengths)
        else:
            k, v = (self.keys_or_values(x, projection) for projection in (self.k_proj, self.v_proj))
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotate is not None:
            k = rotate(k, key=True)
        attend = self.attention.split(k, v, shard, causal=self.causal, lengths=lengths)
        if self.convolution is None:
            q = self.queries(x)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if rotate is not None:
            q = rotate(q)
        gate = None if self.output_gate is None else self.output_gate(x)
        out = attend(q)
        if self.output_norm is not None:
            out = self.output_norm(out)
        return self.merge(out if gate is None else out * gate.view_as(out))

    def _convolved(
        self, q: Tensor, k: Tensor, v: Tensor, **how: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The heads of q, k and v after the convolution, and its state."""
        assert self.convolution is not None
        projected = {"q": (self.q_proj, q), "k": (self.k_proj, k), "v": (self.v_proj, v)}
        names = [name for name, (projection, _) in projected.items() if projection is not None]
        x = torch.cat([projected[name][1].flatten(-2) for name in names], -1)
        if "shard" in how:
            x, inputs = self.convolution.over_group(x, **how), None
        else:
            x, inputs = self.convolution(x, **how)
        heads = {
            name: part.unflatten(-1, (-1, self.head_dim))
            for name, part in zip(names, x.split(self.widths, -1), strict=True)
        }
        # Where a mechanism reads no keys, the values have the same shape.
        return heads.get("q", q), heads.get("k", heads["v"]), heads["v"], inputs

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}/{self.num_kv_heads}, causal={self.causal}"


def _of_attention(state: State | None) -> State | None:
    return state.attention if isinstance(state, ConvolvedState) else state


def _apart(state: Any) -> tuple[Tensor | None, State | None]:
    """The inputs of the convolution and the state of the mechanism."""
    if state is None:
        return None, None
    if not isinstance(state, ConvolvedState):
        raise TypeError(
            f"state must be a ConvolvedState where conv_size is given, but got {type(state).__name__}: it is "
            "of a module without a convolution."
        )
    return state.inputs, state.attention
