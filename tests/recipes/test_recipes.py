"""Every recipe is built at every scale, and stepped once at the smallest."""

import dataclasses

import pytest

from cosformer import attention, tasks
from cosformer.models import CosformerConfig
from cosformer.training import Run, model, recipes, train
from cosformer.training.recipes import SCALES, Table

NAMES = recipes.names()


def test_every_task_has_a_recipe():
    assert tasks.names() == NAMES


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_complete(name, scale):
    """For every mechanism that fits its head: a run, that goes to JSON and back, of a task that exists."""
    for mechanism in attention.names():
        run = recipes.build(name, scale=scale, attention=mechanism)
        assert (run.task, run.recipe, run.scale, run.attention) == (name, name, scale, mechanism)
        assert Run.from_dict(run.to_dict()) == run
        assert run.warmup < run.steps or run.schedule == "rsqrt", "which may only ever rise"
    tasks.build(run.task, **run.task_settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_takes_a_step(name, tmp_path, tiny_data):
    tiny_data(name)
    of = tasks.Masked.of if name == tasks.Masked.name else name
    sizes = {k: 12 for k in ("train_rows", "valid_rows", "test_rows") if k in tasks.parameters(of)}
    run = recipes.build(
        name, scale="tiny", steps=1, batch_size=4, eval_batch_size=64, eval_every=1, warmup=0, device="cpu",
        task_settings=sizes if of == name else {"settings": sizes},
    )  # fmt: skip
    record = train(run, tmp_path / "run", progress=False, results=tmp_path / "results.jsonl")
    task = tasks.build(run.task, **run.task_settings)
    assert record["steps"] == 1
    assert record["metric"]["name"] == task.metric.name
    assert record["metric"]["test"][task.metric.name] == record["metric"]["test"][task.metric.name], (
        "a number"
    )


def test_layers_of_a_table():
    """Shared, scale, mechanism, mechanism at a scale, caller: later ones win, field by field."""
    table = Table(
        task="mqar",
        shared={
            "batch_size": 8,
            "learning_rate": 1.0,
            "steps": 9,
            "model": {"hidden_size": 8, "dropout": 0.1},
        },
        tiny={"steps": 2, "model": {"hidden_size": 16}},
        small={"task_settings": {"pairs": 4}},
        paper={},
        attention={"relu": {"learning_rate": 2.0, "model": {"norm": "rms"}}},
        attention_at={("relu", "tiny"): {"batch_size": 4}},
    )
    run = table.build("tiny", "relu", seed=3, model={"dropout": 0.0})
    assert run.model == {"hidden_size": 16, "dropout": 0.0, "norm": "rms"}
    assert (run.steps, run.batch_size, run.learning_rate, run.seed) == (2, 4, 2.0, 3)
    assert table.build("small").task_settings == {"pairs": 4}
    assert table.build("small", task_settings={"length": 64}).task_settings == {"pairs": 4, "length": 64}
    assert table.build("paper").batch_size == 8
    sister = table.variant("copy", small={"task_settings": {"length": 32}}, tiny={"model": {"norm": "rms"}})
    assert sister.build("small").task_settings == {"length": 32}
    assert sister.build("tiny").model == {"hidden_size": 16, "dropout": 0.1, "norm": "rms"}
    assert table.build("tiny").task == "mqar"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("listop", {}, "no recipe 'listop'; did you mean listops?"),
        ("mqar", {"scale": "huge"}, "scale must be one of tiny, small, paper, but got 'huge'"),
        ("mqar", {"learnin_rate": 1}, "no field 'learnin_rate'; did you mean learning_rate?"),
        ("nowhere/mine.py", {}, "there is no recipe nowhere/mine.py"),
    ],
)
def test_mistakes(name, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message.replace("?", r"\?")):
        recipes.build(name, **options)


def test_a_recipe_of_your_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from cosformer.training import Run\n"
        "def build(scale='small', attention='cosformer', **overrides):\n"
        "    return Run(task='mqar', steps=3, batch_size=2, learning_rate=0.1, attention=attention,"
        " **overrides)\n"
    )
    assert recipes.build(path, attention="relu", seed=4).seed == 4
    path.write_text("x = 1\n")
    with pytest.raises(ValueError, match="has no function build"):
        recipes.build(path)
    path.write_text("def build(**options):\n    return options\n")
    with pytest.raises(TypeError, match="must return a Run, but got dict"):
        recipes.build(path)


def test_fields_of_the_model_are_known():
    """A typing mistake in a table's model settings would otherwise be found hours into a sweep."""
    for name in NAMES:
        for scale in SCALES:
            run = recipes.build(name, scale=scale)
            known = {f.name for f in dataclasses.fields(model.CosformerConfig)}
            assert set(run.model) <= known, (name, scale)


FINE_TUNING = ("sst2", "cola", "mrpc", "rte", "stsb", "qnli", "qqp", "mnli", "imdb", "amazon")


@pytest.mark.parametrize("name", FINE_TUNING)
def test_pretrained_weights_fit_where_it_is_said(name):
    """At small and paper, as recipes/_fine_tuning.py and docs/training.md say, and not at tiny."""

    def sizes(recipe, scale):
        run = recipes.build(recipe, scale=scale)
        data, net = run.task_settings, run.model
        vocabulary = (data["tokens"], data.get("bpe_size"), data.get("bpe_corpus", data.get("corpus")))
        longest = net.get("max_position_embeddings", data["length"])
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "position")
        return vocabulary, longest, [net.get(n) for n in names]

    fits = {scale: sizes(name, scale) == sizes("mlm", scale) for scale in SCALES}
    assert fits == {"tiny": False, "small": True, "paper": True}


def test_the_recommended_model_follows_the_sizes_that_are_asked_for():
    """A user who asks for other heads has said nothing of windows."""
    ours = recipes.build("enwik8", scale="small").model
    assert ours["attention_parameters"] == {"windows": [2, 4, 8, 16, 64, 128, 512, 1024]}
    assert (ours["position"], ours["intermediate_size"]) == ("none", 4 * 512 - 256)
    fewer = recipes.build("python", model={"num_attention_heads": 4, "hidden_size": 256}).model
    assert fewer["attention_parameters"] == {"windows": [2, 8, 128, 1024]}
    assert fewer["intermediate_size"] == 4 * 256 - 128
    grouped = recipes.build("wikitext2", model={"num_key_value_heads": 2, "output_gate": None}).model
    assert grouped["attention_parameters"] == {"windows": [2, 1024]}
    assert grouped["output_gate"] is None
    for options in ({"attention": "softmax"}, {"scale": "paper"}):
        assert "attention_parameters" not in recipes.build("enwik8", **options).model


@pytest.mark.parametrize("recipe", ["enwik8", "python", "wikitext2", "wikitext103"])
def test_a_small_language_model_without_windows_has_rotary_positions(recipe):
    """So that a comparison with softmax is one with softmax as people use it."""
    for name, position in (("softmax", "rotary"), ("relu", "rotary"), ("recommended", "none")):
        assert recipes.build(recipe, scale="small", attention=name).model["position"] == position


@pytest.mark.parametrize("name", recipes.names())
def test_the_recommended_model_is_to_be_had_at_every_scale(name):
    """Also where the feed-forward has fewer weights than a gate: it stays as it is then."""
    for scale in SCALES:
        plain = recipes.build(name, scale=scale, attention="softmax").model
        made = recipes.build(name, scale=scale, attention="recommended").model
        inner, width = plain.get("intermediate_size", 4 * plain["hidden_size"]), plain["hidden_size"]
        assert made["intermediate_size"] == (inner - width // 2 if inner > width // 2 else inner)


@pytest.mark.parametrize(
    ("recipe", "scale"), [("enwik8", "small"), ("image", "small"), ("wikitext103", "paper")]
)
def test_the_recommended_attention_is_the_default_of_the_configuration(recipe, scale):
    plain = recipes.build(recipe, scale=scale, attention="softmax")
    run = recipes.build(recipe, scale=scale, attention="recommended")
    sizes = {n: plain.model[n] for n in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    default = CosformerConfig(**sizes)
    assert run.attention == default.attention
    for name in ("attention_parameters", "output_gate", "output_norm", "qk_norm"):
        assert run.model[name] == getattr(default, name)
    assert run.model["position"] == (
        "none" if (recipe, scale) == ("enwik8", "small") else plain.model["position"]
    )
    assert run.mechanism == "cosformer + softmax"
