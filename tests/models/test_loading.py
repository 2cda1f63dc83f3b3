"""Folders that somebody else has written: no code of theirs is run, nothing is asked, nothing is guessed."""

import ast
import builtins
import json
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cosformer
from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerModel,
    byte_tokenizer,
    loading,
)
from tests.models.tiny import build

ROOT = Path(cosformer.__file__).parents[2]
CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Evil: pass\n"


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    build(CosformerForCausalLM, torch.float32).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(clean, tmp_path, monkeypatch):
    """A copy to be spoilt. No question may be asked, and nobody on a network either."""

    def refuse(*args, **kwargs):
        raise AssertionError("a question was asked, or a connection opened")

    monkeypatch.setattr(builtins, "input", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return shutil.copytree(clean, tmp_path / "model")


def edited(folder, name, **changes):
    path = folder / name
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | changes))


def models(folder):
    """Everything in the package that loads a folder."""
    return {
        "model": lambda: CosformerForCausalLM.from_pretrained(folder),
        "for use": lambda: loading.load_model(CosformerForCausalLM, folder),
        "tokenizer": lambda: loading.load_tokenizer(folder),
        "config": lambda: CosformerConfig.from_pretrained(folder),
    }


NAMES = {"model": "AutoModelForCausalLM", "tokenizer": "AutoTokenizer", "config": "AutoConfig"}


@pytest.mark.parametrize(
    ("file", "loaders"),
    [
        ("config.json", ("model", "for use", "config")),
        ("tokenizer_config.json", ("tokenizer",)),
    ],
)
def test_code_in_a_folder_is_refused_and_never_run(folder, file, loaders):
    (folder / "evil.py").write_text(CODE)
    edited(folder, file, auto_map=dict.fromkeys(NAMES.values(), "evil.Evil"))
    for name in loaders:
        with pytest.raises(
            ValueError, match=rf"{file} names code of its own \(auto_map\), which is never run"
        ):
            models(folder)[name]()
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "field",
    [
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"attn_implementation": "somebody/kernel"},
        {"_attn_implementation": "somebody/kernel"},
        {"experts_implementation": "somebody/kernel"},
        {"transformers_weights": "other.safetensors"},
        {"configuration_files": ["config.9.json"]},
        {"fusion_config": {"x": True}},
        {"custom_pipelines": {"x": {"impl": "evil.Evil"}}},
    ],
    ids=lambda field: next(iter(field)),
)
def test_fields_that_lead_elsewhere_are_refused(folder, field):
    edited(folder, "config.json", **field)
    for name in ("model", "for use", "config"):
        with pytest.raises(ValueError, match=next(iter(field))):
            models(folder)[name]()


def test_a_folder_of_an_adapter_is_refused(folder):
    edited(folder, "adapter_config.json", base_model_name_or_path="somebody/model")
    with pytest.raises(ValueError, match=r"adapter_config\.json: it changes another model"):
        CosformerForCausalLM.from_pretrained(folder)


def test_permission_to_run_code_is_refused(folder):
    with pytest.raises(ValueError, match="trust_remote_code must not be True"):
        CosformerForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_every_loader_goes_through_the_one_that_is_guarded():
    """A call of transformers' own loaders anywhere else in the package would be one that forgets."""
    own = ROOT / "src" / "cosformer" / "models"
    allowed = {own / "loading.py", own / "base.py", own / "config.py"}
    found = []
    for path in [
        p for part in ("src", "recipes", "benchmarks", "examples") for p in (ROOT / part).rglob("*.py")
    ]:
        if path in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("from_pretrained", "from_file", "get_config_dict"):
                owner = ast.unparse(node.func.value)
                if not owner.startswith("Cosformer"):
                    found.append(f"{path}:{node.lineno}: {owner}.{node.func.attr}")
            if ast.unparse(node.func) in ("torch.load", "pickle.load", "pickle.loads", "np.load"):
                loose = ast.unparse(node.func) != "np.load" or any(
                    k.arg == "allow_pickle" for k in node.keywords
                )
                if loose:
                    found.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}")
    assert not found


@pytest.mark.parametrize("name", ["somebody/model", "no-such-model", "./runs/mlm", "/nowhere/at/all", "a\0b"])
def test_what_is_not_there_is_an_error_at_once(folder, name):
    began = time.perf_counter()
    for load in models(name).values():
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            load()
    assert time.perf_counter() - began < 1


def test_a_hub_is_asked_where_it_is_named(folder, monkeypatch):
    import huggingface_hub

    asked = {}

    def snapshot(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    CosformerForCausalLM.from_pretrained("somebody/model", local_files_only=False, revision="v1")
    assert (asked["name"], asked["revision"]) == ("somebody/model", "v1")
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])


# -------------------------------------------------------------- weights that are not those of the model


def changed(folder, change):
    path = folder / "model.safetensors"
    stored = load_file(path)
    change(stored)
    save_file(stored, path, metadata={"format": "pt"})


def without_layers(stored):
    for name in [n for n in stored if ".layers." in n]:
        del stored[name]


def one_missing(stored):
    del stored["model.layers.1.feed_forward.up_proj.weight"]


def one_more(stored):
    stored["model.layers.2.feed_forward.up_proj.weight"] = torch.zeros(2, 2)


def one_of_another_shape(stored):
    stored["model.layers.1.feed_forward.up_proj.weight"] = torch.zeros(2, 2)


def one_of_whole_numbers(stored):
    x = stored["model.layers.1.feed_forward.up_proj.weight"]
    stored["model.layers.1.feed_forward.up_proj.weight"] = x.to(torch.int8)


def one_nan(stored):
    stored["model.layers.1.feed_forward.up_proj.weight"][3, 4] = torch.nan


def one_inf(stored):
    stored["model.layers.1.feed_forward.up_proj.weight"][3, 4] = -torch.inf


SPOILT = {
    without_layers: r"lacks model\.layers\.0\.\S+ \(and \d+ more\)",
    one_missing: r"lacks model\.layers\.1\.feed_forward\.up_proj\.weight",
    one_more: r"has model\.layers\.2\.feed_forward\.up_proj\.weight, which the model has not",
    one_of_another_shape: r"up_proj\.weight has shape \[2, 2\] in the file and \[48, 32\] in the model",
    one_of_whole_numbers: r"up_proj\.weight holds int8",
    one_nan: r"up_proj\.weight holds NaN or infinite numbers",
    one_inf: r"up_proj\.weight holds NaN or infinite numbers",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda f: f.__name__)
def test_weights_that_are_not_the_models_are_refused(folder, spoil):
    changed(folder, spoil)
    with pytest.raises(ValueError, match=SPOILT[spoil]) as error:
        loading.load_model(CosformerForCausalLM, folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
    net = build(CosformerForCausalLM, torch.float32)
    before = {name: x.clone() for name, x in net.state_dict().items()}
    with pytest.raises(ValueError, match=SPOILT[spoil]):
        loading.load_weights(net, folder / "model.safetensors")
    if spoil not in (one_nan, one_inf):
        assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items()), "or not at all"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "head", [CosformerForCausalLM, CosformerForMaskedLM, CosformerForSequenceClassification]
)
def test_what_is_whole_loads_to_the_bit(head, tied, tmp_path):
    net = build(head, torch.float32, tie_word_embeddings=tied, attention="performer")
    net.save_pretrained(tmp_path)
    again = build(head, torch.float32, tie_word_embeddings=tied, attention="performer")
    with torch.no_grad():
        for x in again.parameters():
            x.zero_()
    loading.load_weights(again, tmp_path / "model.safetensors")
    for loaded in (again, loading.load_model(head, tmp_path)):
        assert all(torch.equal(x, net.state_dict()[name]) for name, x in loaded.state_dict().items())


def test_a_head_is_drawn_where_that_is_said(tmp_path):
    build(CosformerForMaskedLM, torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks score\.weight"):
        loading.load_model(CosformerForSequenceClassification, tmp_path)
    net, drawn = loading.load_body(CosformerForSequenceClassification, tmp_path)
    assert "score.weight" in drawn
    body = CosformerModel.from_pretrained(tmp_path)
    assert all(torch.equal(x, net.model.state_dict()[name]) for name, x in body.state_dict().items())
    changed(tmp_path, one_missing)
    with pytest.raises(ValueError, match=r"lacks model\.layers\.1"):
        loading.load_body(CosformerForSequenceClassification, tmp_path)
