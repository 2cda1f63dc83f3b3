"""The module gives the authors' numbers, and what theirs cannot do."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from cosformer import CosformerAttention, cosformer_attention

BOTH = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


class AuthorsAttention(nn.Module):
    """The public module's equations: [L, N, E], index from 1, M = the longer length of the call."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None, causal=False):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, eps=1e-6):
        tgt_len, bsz, _ = query.shape
        src_len = key.shape[0]
        q, k, v = self.q_proj(query).relu(), self.k_proj(key).relu(), self.v_proj(value)
        q, k, v = (x.view(len(x), bsz * self.num_heads, -1).transpose(0, 1) for x in (q, k, v))  # (N·h, L, d)
        m = max(src_len, tgt_len)
        index = math.pi / 2 * torch.arange(1, m + 1, dtype=q.dtype).view(1, -1, 1)
        q_ = torch.cat([q * torch.sin(index[:, :tgt_len] / m), q * torch.cos(index[:, :tgt_len] / m)], -1)
        k_ = torch.cat([k * torch.sin(index[:, :src_len] / m), k * torch.cos(index[:, :src_len] / m)], -1)
        if self.causal:
            kv_cum = torch.einsum("nld,nlm->nldm", k_, v).cumsum(1)
            qkv = torch.einsum("nld,nldm->nlm", q_, kv_cum)
            denominator = torch.einsum("nld,nld->nl", q_, k_.cumsum(1)).clamp_min(eps)
            out = qkv / denominator.unsqueeze(-1)
        else:
            kv = torch.einsum("nld,nlm->ndm", k_, v)
            z = 1 / torch.einsum("nld,nd->nl", q_, k_.sum(1)).clamp_min(eps)
            out = torch.einsum("nld,ndm,nl->nlm", q_, kv, z)
        return self.out_proj(out.transpose(0, 1).reshape(tgt_len, bsz, -1))


def pair(dtype, **options):
    """Theirs and ours, with the same weights."""
    authors = AuthorsAttention(64, 4, **options).to(dtype)
    ours = CosformerAttention(64, 4, dtype=dtype, **options)
    ours.load_state_dict(authors.state_dict())
    return authors, ours


def assert_close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=str)
class TestTheAuthorsNumbers:
    @BOTH
    @pytest.mark.parametrize("length", [1, 7, 64, 200])
    def test_self_attention(self, length, causal, dtype, tolerance):
        authors, ours = pair(dtype, causal=causal)
        x = torch.randn(length, 3, 64, dtype=dtype)
        assert_close(ours(x.transpose(0, 1)).transpose(0, 1), authors(x, x, x), tolerance)

    @pytest.mark.parametrize(("tgt_len", "src_len"), [(1, 90), (40, 150), (150, 40), (64, 64)])
    def test_cross_attention(self, tgt_len, src_len, dtype, tolerance):
        authors, ours = pair(dtype, kdim=48, vdim=40)
        query = torch.randn(tgt_len, 3, 64, dtype=dtype)
        key, value = (torch.randn(src_len, 3, width, dtype=dtype) for width in (48, 40))
        out = ours(*(x.transpose(0, 1) for x in (query, key, value))).transpose(0, 1)
        assert_close(out, authors(query, key, value), tolerance)

    def test_causal_cross_attention(self, dtype, tolerance):
        """Theirs can do it where both lengths are the same."""
        authors, ours = pair(dtype, causal=True)
        query, memory = (torch.randn(70, 3, 64, dtype=dtype) for _ in range(2))
        out = ours(query.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)
        assert_close(out, authors(query, memory, memory), tolerance)


@BOTH
def test_the_authors_gradients(causal):
    authors, ours = pair(torch.float64, causal=causal)
    x = torch.randn(50, 2, 64, dtype=torch.float64)
    authors(x, x, x).square().sum().backward()
    ours(x.transpose(0, 1)).square().sum().backward()
    theirs = dict(authors.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, theirs[name].grad)


def test_parameters_are_those_of_the_authors():
    names = {f"{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")}
    assert set(CosformerAttention(16, 2).state_dict()) == names | {"out_proj.weight", "out_proj.bias"}
    assert set(CosformerAttention(16, 2, bias=False).state_dict()) == {
        "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"
    }  # fmt: skip
    authors = AuthorsAttention(16, 2, kdim=12, vdim=10).state_dict()
    ours = CosformerAttention(16, 2, kdim=12, vdim=10).state_dict()
    assert {n: p.shape for n, p in ours.items()} == {n: p.shape for n, p in authors.items()}


@BOTH
def test_grouped_heads_are_repeated_key_heads(causal):
    grouped = CosformerAttention(64, 8, num_kv_heads=2, causal=causal, dtype=torch.float64)
    full = CosformerAttention(64, 8, causal=causal, dtype=torch.float64)
    weights = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        assert len(weights[name]) == 16
        weights[name] = weights[name].unflatten(0, (2, 8)).repeat_interleave(4, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(2, 70, 64, dtype=torch.float64)
    assert_close(grouped(x), full(x))


def test_key_and_value_of_other_widths():
    module = CosformerAttention(32, 4, kdim=24, vdim=40, num_kv_heads=2, bias=False, dtype=torch.float64)
    query, key, value = (
        torch.randn(2, t, width, dtype=torch.float64) for t, width in ((5, 32), (9, 24), (9, 40))
    )
    heads = (
        (x @ p.weight.T).unflatten(-1, (-1, 8))
        for x, p in ((query, module.q_proj), (key, module.k_proj), (value, module.v_proj))
    )
    expected = cosformer_attention(*heads, backend="reference").flatten(-2) @ module.out_proj.weight.T
    assert_close(module(query, key, value), expected)


@BOTH
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_as_each_alone(side, causal):
    module = CosformerAttention(32, 4, causal=causal, horizon=100, dtype=torch.float64)
    lengths, longest = (1, 30, 64, 80), 80
    rows = [torch.randn(1, n, 32, dtype=torch.float64) for n in lengths]
    batch = torch.full((4, longest, 32), torch.nan, dtype=torch.float64)
    mask = torch.zeros(4, longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        real = slice(0, lengths[i]) if side == "right" else slice(longest - lengths[i], longest)
        batch[i, real], mask[i, real] = row[0], True
    out = module(batch, key_mask=mask)
    for i, row in enumerate(rows):
        assert_close(out[i][mask[i]], module(row)[0])


def test_one_token_at_a_time_is_all_at_once():
    module = CosformerAttention(32, 4, num_kv_heads=2, causal=True, horizon=100, dtype=torch.float64)
    x = torch.randn(3, 75, 32, dtype=torch.float64)
    outs, state = [], None
    for token in x.split(1, 1):
        out, state = module(token, state=state, return_state=True)
        outs.append(out)
    assert_close(torch.cat(outs, 1), module(x))
    assert state.seen == 75


def test_a_memory_read_through_its_state():
    """Cross-attention in decoding: the keys become a state once, later calls bring no keys."""
    module = CosformerAttention(32, 4, kdim=24, vdim=24, horizon=200, dtype=torch.float64)
    memory, query = torch.randn(2, 90, 24, dtype=torch.float64), torch.randn(2, 20, 32, dtype=torch.float64)
    whole, state = module(query, memory, return_state=True)
    steps = [
        module(query[:, t : t + 1], memory[:, :0], state=state, query_offset=t - state.seen)
        for t in range(20)
    ]
    assert_close(torch.cat(steps, 1), whole)


@BOTH
def test_packed_documents_are_as_each_alone(causal):
    module = CosformerAttention(32, 4, causal=causal, horizon=100, dtype=torch.float64)
    x = torch.randn(1, 150, 32, dtype=torch.float64)
    bounds = [0, 1, 40, 40, 140, 150]
    out, state = module(x, cu_seqlens=torch.tensor(bounds), return_state=True)
    alone = [module(x[:, a:b]) for a, b in pairwise(bounds) if b > a]
    assert_close(out, torch.cat(alone, 1))
    assert state.positions.tolist() == [1, 39, 0, 100, 10]


@BOTH
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_gradients_reach_every_parameter(causal, kv_heads):
    module = CosformerAttention(32, 4, kdim=24, vdim=40, num_kv_heads=kv_heads, causal=causal)
    inputs = [torch.randn(2, 70, width, requires_grad=True) for width in (32, 24, 40)]
    module(*inputs).square().sum().backward()
    for name, x in [*module.named_parameters(), *zip(("query", "key", "value"), inputs, strict=True)]:
        assert x.grad is not None, name
        assert x.grad.isfinite().all(), name
        assert x.grad.abs().max() > 0, name


def test_repr_says_how_it_was_made():
    module = CosformerAttention(32, 8, num_kv_heads=2, causal=True, horizon=4096)
    assert module.extra_repr() == "heads=8/2, causal=True, horizon=4096"
    assert "heads=8/2, causal=True, horizon=4096" in repr(module)


WINDOWS = (3, None, 1, 20)


@BOTH
def test_windows_are_the_operators(causal):
    module = CosformerAttention(64, 4, causal=causal, horizon=99, windows=list(WINDOWS), dtype=torch.float64)
    x = torch.randn(2, 50, 64, dtype=torch.float64)
    q, k, v = module.project(x, None, None)
    out = cosformer_attention(q, k, v, causal=causal, horizon=99, windows=WINDOWS)
    assert_close(module(x), module.merge(out))
    assert module.windows == WINDOWS
    assert "windows=(3, None, 1, 20)" in repr(module)


def test_windows_and_lengths_with_a_state():
    """No horizon where every head has a window; rows of other lengths go on as each alone."""
    module = CosformerAttention(64, 4, causal=True, windows=(3, 2, 1, 20), dtype=torch.float64)
    x, more = (torch.randn(2, n, 64, dtype=torch.float64) for n in (30, 5))
    _, state = module(x, lengths=torch.tensor([30, 11]), return_state=True)
    out = module(more, state=state)
    for row, n in enumerate((30, 11)):
        text = torch.cat([x[row : row + 1, :n], more[row : row + 1]], 1)
        assert_close(out[row : row + 1], module(text)[:, n:])


def test_windows_have_an_entry_for_each_head():
    with pytest.raises(ValueError, match="windows must have one entry for each of the 2 key-value heads"):
        CosformerAttention(64, 4, num_kv_heads=2, windows=(1, 2, 3, 4))


def test_settings_are_read_and_not_changed():
    """A copy that could be changed would change nothing."""
    module = CosformerAttention(8, 2, horizon=10, windows=[3, None], eps=1e-3, backend="chunked")
    assert (module.horizon, module.windows, module.eps, module.backend) == (10, (3, None), 1e-3, "chunked")
    for name in ("horizon", "windows", "eps", "backend"):
        with pytest.raises(AttributeError):
            setattr(module, name, getattr(module, name))
