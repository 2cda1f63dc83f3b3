"""Writes docs/attentions.md from the registry's traits and the recorded agreement with other packages.

python docs/render_attentions.py
"""

import inspect
import json
from pathlib import Path

from cosformer import attention, positions
from cosformer.report import render as report

FOLDER = Path(__file__).resolve().parent
SHORT, LONG = 1024, 65536  # lengths at which states are given

INTRODUCTION = """# Attentions

Every attention that cosFormer is compared with is in one registry, and tested by one set of laws
(`tests/attention/test_laws.py`): each equals a slow, literal transcription of its paper, in values and in
gradients, in float64. This page is written by `python docs/render_attentions.py` from the traits of the
mechanisms; [adding an attention](adding_an_attention.md) shows how to add a row.

```python
from cosformer import attention

attention.names()
attention.traits("performer").constant_state
mechanism = attention.build("performer", head_dim=64, features=128)  # on q, k, v [B, T, heads, head size]
```

In a model: `CosformerConfig(attention="performer", attention_parameters={"features": 128})`.
"""

ABILITIES = """## What each can do

What is not marked raises, with the reason, when it is asked for. *cross*: queries and keys of different
lengths. *mask*: single keys can be hidden. *packed*: several documents in one row. *grouped*: a key head may
serve several query heads. *split*: one sequence can be [split over many devices](scaling.md). *state*: the
numbers carried in decoding for one head of 64, after 1,024 and after 65,536 tokens; a dash where nothing can
be carried.

`softmax` with a window for every head (`windows=[1024] * 8`) is linear in the length, and its state is the
last W - 1 keys and values; a text has no bound then. `attention.traits("softmax", windows=[1024])` says so.
"""

PARAMETERS = """## Parameters

With their defaults; `num_heads`, `num_kv_heads`, `head_dim`, `max_length` and `horizon` are the model's own
inside a model.
"""

AGREEMENT = """## Agreement with independent implementations

The largest difference between our values or gradients and those of another package, relative to the largest
entry (`make oracles`; fast-transformers, which has to be compiled, is not among what that installs, and
its figures are kept from a run with it). Near 1e-15 the comparison was in float64, near 1e-6 in float32.
Where there is no package to compare with, the transcription is the judge.
"""

POSITIONS = """## Positions

What a model adds to its tokens, or does to the heads of queries and keys (`CosformerConfig(position=...)`).
`stochastic` (Liutkus et al., 2021, arXiv:2105.08399) is for the attentions that are linear in features.
Random features and noise are sampled once, saved with the model, and resampled where the training loop calls
`cosformer.random_features.resample(model, step)` between steps, every `redraw_interval` of them.
"""


def words(header: list[str], rows: list[list[str]]) -> str:
    return report.table(header, rows, figures=False)


def paper(text: str) -> str:
    """The arXiv number as a link."""
    title, found, number = text.rpartition("arXiv:")
    link = f"[arXiv:{number}](https://arxiv.org/abs/{number})"
    return f"{title.rstrip(' ,')}, {link}" if found else text


def parameters(found: dict[str, inspect.Parameter]) -> str:
    words = [f"`{p.name}`" if p.default is p.empty else f"`{p.name}={p.default!r}`" for p in found.values()]
    return ", ".join(words) or "none"


def ability_row(name: str) -> list[str]:
    traits, made = attention.traits(name), attention.build(name)
    marks = (
        "causal", "bidirectional", "cross", "key_mask", "cu_seqlens", "grouped_heads", "sequence_parallel",
        "random",
    )  # fmt: skip
    state = "–"
    if traits.recurrent:
        sizes = [made.state_size(length, num_kv_heads=1, head_dim=64) for length in (SHORT, LONG)]
        state = f"{sizes[0]:,}" if traits.constant_state else f"{sizes[0]:,} → {sizes[1]:,}"
    return [f"`{name}`", traits.cost, *("✓" if getattr(traits, m) else "" for m in marks), state]


def agreement(name: str, records: list[dict[str, object]]) -> str:
    own = [r for r in records if r["mechanism"] == name]
    return (
        "; ".join(f"{r['package']} {r['version']}: {r['error']:.1e}" for r in own)
        or "the transcription alone"
    )


def render() -> str:
    record = FOLDER / "oracles.json"
    records = list(json.loads(record.read_text()).values()) if record.is_file() else []
    names = attention.names()
    header = [
        "attention",
        "cost",
        "causal",
        "both ways",
        "cross",
        "mask",
        "packed",
        "grouped",
        "split",
        "random",
        "state",
    ]
    parts = [
        INTRODUCTION,
        words(["attention", "paper"], [[f"`{n}`", paper(attention.traits(n).paper)] for n in names]),
        ABILITIES,
        words(header, [ability_row(n) for n in names]),
        PARAMETERS,
        words(["attention", "parameters"], [[f"`{n}`", parameters(attention.parameters(n))] for n in names]),
        AGREEMENT,
        words(["attention", "agrees with"], [[f"`{n}`", agreement(n, records)] for n in names]),
        POSITIONS,
        words(
            ["position", "parameters"],
            [[f"`{n}`", parameters(positions.parameters(n))] for n in positions.names()],
        ),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    (FOLDER / "attentions.md").write_text(render())
    print(FOLDER / "attentions.md")
