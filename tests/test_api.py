"""The public interface, frozen: a change here is a change for every user and belongs in CHANGELOG.md."""

import inspect
import pkgutil
import tomllib
from pathlib import Path

import cosformer
import cosformer.nn
import cosformer.ops

ROOT = Path(__file__).parents[1]


def signature(f):
    """Names, kinds and defaults; annotations may be refined."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(f).parameters.values()]
    return str(inspect.Signature(parameters))


def test_names():
    assert sorted(cosformer.__all__) == [
        "CosformerAttention", "CosformerState", "attention", "backends", "cosformer_attention", "positions"
    ]  # fmt: skip
    mechanisms = [type(cosformer.attention.build(n)).__name__ for n in cosformer.attention.names()]
    common = ["Attention", "State", "Traits", "build", "fit", "names", "parameters", "register", "traits"]
    assert sorted(cosformer.attention.__all__) == sorted(common + mechanisms)
    assert sorted(cosformer.positions.__all__) == [
        "LearnedPosition", "NoPosition", "Position", "RotaryPosition", "SinusoidalPosition",
        "StochasticPosition", "build", "fit", "names", "parameters", "register",
    ]  # fmt: skip
    assert sorted(cosformer.ops.__all__) == [
        "BackendStatus", "CosformerState", "backends", "cosformer_attention", "decode_step"
    ]  # fmt: skip
    assert sorted(cosformer.nn.__all__) == [
        "Block", "BlockOutput", "ConvolvedState", "CosformerAttention", "CrossAttentionState", "FeedForward",
        "MultiheadAttention", "OutputGate", "ShortConvolution", "build_norm",
        "chunked_cross_entropy", "one_vs_each_loss",
    ]  # fmt: skip
    for package in (cosformer, cosformer.attention, cosformer.positions, cosformer.ops, cosformer.nn):
        for name in package.__all__:
            assert getattr(package, name).__doc__, name


def test_every_package_is_an_attribute_that_has_what_it_names():
    """Of `import cosformer` alone, whichever is asked for first."""
    packages = {p.name for p in pkgutil.iter_modules(cosformer.__path__) if p.ispkg}
    assert packages - set(cosformer._PACKAGES) == {"cli", "demo", "serving"}, "these are commands"
    for package in cosformer._PACKAGES:
        found = getattr(cosformer, package)
        for name in getattr(found, "__all__", ()):
            assert getattr(found, name) is not None, name


def test_operator():
    assert signature(cosformer.cosformer_attention) == (
        "(q, k, v, *, causal=False, horizon=None, windows=None, key_mask=None, query_offset=None, "
        "cu_seqlens=None, eps=1e-06, lengths=None, state=None, return_state=False, backend='auto')"
    )


def test_distributed():
    assert sorted(cosformer.distributed.__all__) == [
        "SequenceGroup", "SequenceParallelError", "Shard", "gather_sequence", "group_sum",
        "sequence_group", "sequence_mesh", "sequence_parallel_attention",
    ]  # fmt: skip
    assert signature(cosformer.distributed.sequence_parallel_attention) == (
        "(q, k, v, *, group, causal=False, horizon=None, windows=None, key_mask=None, cu_seqlens=None, "
        "eps=1e-06, lengths=None, state=None, return_state=False, backend='auto', check=True)"
    )


def test_module():
    assert signature(cosformer.CosformerAttention) == (
        "(embed_dim, num_heads, *, kdim=None, vdim=None, num_kv_heads=None, causal=False, horizon=None, "
        "windows=None, bias=True, eps=1e-06, backend='auto', device=None, dtype=None)"
    )
    assert signature(cosformer.CosformerAttention.forward) == (
        "(self, query, key=None, value=None, key_mask=None, state=None, *, query_offset=None, "
        "cu_seqlens=None, lengths=None, return_state=False)"
    )


def test_state():
    state = cosformer.CosformerState
    assert signature(state) == (
        "(numerator, denominator, positions, seen, horizon, keys=None, values=None, windows=None)"
    )
    assert signature(state.zeros) == (
        "(batch, num_kv_heads, head_dim, value_dim=None, *, horizon=None, windows=None, device=None, "
        "dtype=torch.float32, input_dtype=None)"
    )
    public = {name for name in dir(state) if not name.startswith("_")}
    assert public >= {"zeros", "batch", "nbytes", "to", "select", "repeat", "detach", "clone"}


def test_backends():
    found = {b.name: b for b in cosformer.backends()}
    assert list(found) == ["hopper", "triton", "chunked", "reference"]
    for backend in found.values():
        assert backend.summary
        assert backend.available == (backend.reason is None)
    assert found["chunked"].available
    assert found["reference"].available


def test_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cosformer.__version__ == project["version"]


def test_is_typed():
    assert (Path(cosformer.__file__).parent / "py.typed").is_file()
