"""Convolution, norms and gate in multi-head attention: each is its equation, around any mechanism."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from cosformer import attention
from cosformer.nn import ConvolvedState, CosformerAttention, MultiheadAttention, OutputGate

OPTIONS = {
    "conv": {"conv_size": 4},
    "silu": {"output_gate": "silu"},
    "sigmoid": {"output_gate": "sigmoid"},
    "output_norm": {"output_norm": True},
    "qk_norm": {"qk_norm": True},
    "all": {"conv_size": 3, "output_gate": "silu", "output_norm": True, "qk_norm": True},
}
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
NAMES = pytest.mark.parametrize("name", attention.names())
WIDTH, HEADS, SIZE = 32, 4, 8


def multihead(name, options, *, causal=True, kv_heads=HEADS):
    torch.manual_seed(0)
    sizes = {"num_heads": HEADS, "num_kv_heads": kv_heads, "head_dim": SIZE, "max_length": 64, "horizon": 64}
    made = MultiheadAttention(
        WIDTH, HEADS, attention.fit(name, {}, **sizes), causal=causal, num_kv_heads=kv_heads, **options
    ).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return made.eval()


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def convolved(weight, x, causal):
    """F.conv1d: the taps in the other order, and one for the token itself on top."""
    taps = weight.shape[1]
    middle = 0 if causal else taps // 2
    kernel = weight.clone()
    kernel[:, middle] += 1
    pads = (taps - 1, 0) if causal else (taps // 2, taps // 2)
    return F.conv1d(F.pad(x.mT, pads), kernel.flip(1)[:, None], groups=len(kernel)).mT


def rms(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def slow(made, x, options):
    """The docstring of MultiheadAttention, written out."""
    heads = {"q": made.num_heads, "k": made.num_kv_heads, "v": made.num_kv_heads}
    parts, taken = {}, 0
    for part, projection in (("q", made.q_proj), ("k", made.k_proj), ("v", made.v_proj)):
        if projection is None:
            continue
        y = x @ projection.weight.T + projection.bias
        if "conv_size" in options:
            weight = made.convolution.weight[taken : taken + y.shape[-1]]
            y, taken = convolved(weight, y, made.causal), taken + y.shape[-1]
        y = y.unflatten(-1, (heads[part], SIZE))
        if options.get("qk_norm") and part in "qk":
            y = rms(y, made.q_norm if part == "q" else made.k_norm)
        parts[part] = y
    q = parts.get("q", x.unflatten(-1, (HEADS, SIZE)))
    out = made.attention(q, parts.get("k", parts["v"]), parts["v"], causal=made.causal)
    if options.get("output_norm"):
        out = rms(out, made.output_norm)
    out = out.flatten(-2)
    if "output_gate" in options:
        g = x @ made.output_gate.proj.weight.T + made.output_gate.bias
        out = out * {"silu": g * torch.sigmoid(g), "sigmoid": torch.sigmoid(g)}[options["output_gate"]]
    return out @ made.out_proj.weight.T + made.out_proj.bias


def ways(name):
    traits = attention.traits(name)
    return [causal for causal in (True, False) if (traits.causal if causal else traits.bidirectional)]


@EACH
@NAMES
def test_equals_its_equation(name, options):
    for causal in ways(name):
        made, x = multihead(name, options, causal=causal), inputs(2, 13, WIDTH)
        ours, theirs = made(x)[0], slow(made, x, options)
        close(ours, theirs)
        wanted = [p for p in made.parameters() if p.requires_grad]
        found = [torch.autograd.grad(y.square().sum(), wanted, allow_unused=True) for y in (ours, theirs)]
        for a, b in zip(*found, strict=True):
            close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)


@EACH
def test_grouped_heads(options):
    made, x = multihead("cosformer", options, kv_heads=2), inputs(2, 13, WIDTH)
    close(made(x)[0], slow(made, x, options))


@EACH
def test_pieces_with_a_state_are_the_whole(options):
    """A first piece shorter than the convolution's memory, then one token at a time."""
    made, x = multihead("cosformer", options), inputs(2, 12, WIDTH)
    outs, state = [], None
    for piece in x.split([1, 5, 1, 1, 1, 3], 1):
        out, state = made(piece, state=state, return_state=True)
        outs.append(out)
    close(torch.cat(outs, 1), made(x)[0])
    assert isinstance(state, ConvolvedState) == ("conv_size" in options)
    assert state.positions.tolist() == [12, 12]


def test_a_state_around_another_is_a_state():
    made, x = multihead("cosformer", OPTIONS["conv"]), inputs(2, 9, WIDTH)
    _, state = made(x, return_state=True)
    assert state.batch == 2
    assert state.seen == 9
    assert state.nbytes == state.attention.nbytes + 2 * 3 * 3 * WIDTH * 8
    step = inputs(2, 1, WIDTH)
    wanted, _ = made(step, state=state)
    for changed, rows in (
        (state.select([1, 0, 1]), [1, 0, 1]),
        (state.repeat(2), [0, 0, 1, 1]),
        (state.clone(), [0, 1]),
        (state.detach().to("cpu"), [0, 1]),
        (state.with_positions(state.positions, state.seen), [0, 1]),
    ):
        close(made(step[rows], state=changed)[0], wanted[rows])
    assert state.with_positions(state.positions + 2, 11).positions.tolist() == [11, 11]
    with pytest.raises(ValueError, match="rows must be a one-dimensional list or tensor of row numbers"):
        state.select([0.5])
    strided = dataclasses.replace(state, inputs=state.inputs.mT.contiguous().mT)
    assert not strided.inputs.is_contiguous()
    assert strided.clone().inputs.is_contiguous()
    empty = state.empty_like()
    assert empty.nbytes == state.nbytes
    assert empty.positions is state.positions
    assert empty.attention.numerator.data_ptr() != state.attention.numerator.data_ptr()
    x = inputs(2, 9, WIDTH).requires_grad_()
    _, state = made(x, return_state=True)
    made(step, state=state)[0].sum().backward()
    assert x.grad[:, -3:].abs().min() > 0, "gradients flow through the state"


def test_what_a_gate_begins_with():
    x = torch.randn(2, 9, 64)
    for kind, value in (("silu", 1.0), ("sigmoid", 0.5)):
        gate = OutputGate(64, kind)
        torch.nn.init.normal_(gate.proj.weight, std=0.02)
        assert gate(x).mean().item() == pytest.approx(value, abs=0.02)


def test_what_cannot_be():
    made, x = multihead("cosformer", OPTIONS["conv"]), inputs(1, 4, WIDTH)
    with pytest.raises(ValueError, match="key must be left out where conv_size is given"):
        made(x, x)
    _, state = made(x, return_state=True)
    with pytest.raises(TypeError, match="must be a ConvolvedState where conv_size is given, but got Cosform"):
        made(x, state=state.attention)
    plain = multihead("cosformer", {})
    with pytest.raises(TypeError, match="must be a CosformerState for attention 'cosformer', but got Conv"):
        plain(x, state=state)
    with pytest.raises(ValueError, match="output_gate must be None or one of silu, sigmoid, but got 'relu'"):
        multihead("cosformer", {"output_gate": "relu"})


def test_without_options_it_is_the_papers_module():
    """No parameter more, and the same numbers to the bit."""
    ours = multihead("cosformer", {}, causal=True)
    papers = CosformerAttention(WIDTH, HEADS, causal=True, horizon=64, dtype=torch.float64)
    papers.load_state_dict(ours.state_dict())
    x = inputs(2, 30, WIDTH)
    assert torch.equal(ours(x)[0], papers(x))


@EACH
@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(options, causal):
    """Of the inputs and of every weight that an option adds."""
    taps = {"conv_size": 3} if "conv_size" in options else {}  # an odd number where both sides are seen
    made, x = multihead("cosformer", {**options, **taps}, causal=causal), inputs(1, 6, WIDTH).requires_grad_()
    plain = dict(multihead("cosformer", {}, causal=causal).named_parameters())
    added = {name: p for name, p in made.named_parameters() if name not in plain}
    assert added

    def run(x, *weights):
        return torch.func.functional_call(made, dict(zip(added, weights, strict=True)), (x,))[0]

    torch.autograd.gradcheck(run, (x, *added.values()), fast_mode=True)
