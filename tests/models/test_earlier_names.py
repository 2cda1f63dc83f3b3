"""Folders of encoder-decoders that were saved before encoder and decoder stood in one base model: the same
model, through every door, and nothing more is let in than before."""

import json
import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from cosformer.models import CosformerEncoderDecoderModel, CosformerForConditionalGeneration
from cosformer.models.loading import load_body, load_model, load_weights
from cosformer.training import best, checkpoint, evaluate, recipes, train
from tests.models.tiny import build, tokens

# As they were saved then: one layer on each side, learned positions, an embedding that all share.
_LAYER = [
    *product(["attention"], ["q_proj", "k_proj", "v_proj", "out_proj"]),
    *product(["feed_forward"], ["up_proj", "down_proj"]), ("attention_norm",), ("feed_forward_norm",),
]  # fmt: skip
_CROSS = [
    *product(["cross_attention"], ["q_proj", "k_proj", "v_proj", "out_proj"]),
    ("cross_attention_norm",),
]
SAVED_THEN = {
    "encoder.embed_tokens.weight",
    *(f"{side}.position.table.weight" for side in ("encoder", "decoder")),
    *(f"{side}.norm.{x}" for side, x in product(("encoder", "decoder"), ("weight", "bias"))),
    *(f"encoder.layers.0.{'.'.join(m)}.{x}" for m, x in product(_LAYER, ("weight", "bias"))),
    *(f"decoder.layers.0.{'.'.join(m)}.{x}" for m, x in product(_LAYER + _CROSS, ("weight", "bias"))),
}


def then(name):
    return name.removeprefix("model.")


def rename(path):
    """Gives the tensors of a file the names of then."""
    save_file({then(name): x for name, x in load_file(path).items()}, path, metadata={"format": "pt"})


def earlier(net, folder, **options):
    net.save_pretrained(folder, **options)
    for path in folder.glob("*.safetensors"):
        rename(path)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text())
        content["weight_map"] = {then(name): file for name, file in content["weight_map"].items()}
        index.write_text(json.dumps(content))
    return folder


def model(**changes):
    fields = {"num_hidden_layers": 1, "position": "learned", "tie_word_embeddings": True}
    return build(CosformerForConditionalGeneration, torch.float32, **fields | changes)


def test_the_names_of_then(tmp_path):
    earlier(model(), tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == SAVED_THEN


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["one-file", "several"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_same_model(tmp_path, tied, options):
    net = model(tie_word_embeddings=tied, num_decoder_layers=2, attention="cosformer")
    earlier(net, tmp_path, **options)
    ids, target = tokens(2, 9), tokens(2, 5)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    doors = (
        CosformerForConditionalGeneration.from_pretrained,
        AutoModelForSeq2SeqLM.from_pretrained,
        lambda folder: load_model(CosformerForConditionalGeneration, folder),
        lambda folder: load_body(CosformerForConditionalGeneration, folder)[0],
    )
    for door in doors:
        again = door(tmp_path).eval()
        for call in (
            lambda m: m(ids, attention_mask=mask, decoder_input_ids=target).logits,
            lambda m: m.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=3),
        ):
            assert torch.equal(call(again), call(net))
    base, info = CosformerEncoderDecoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert info["unexpected_keys"] == (set() if tied else {"lm_head.weight"})
    assert all(torch.equal(x, net.model.state_dict()[name]) for name, x in base.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("decoder.norm.bias"), r"lacks model\.decoder\.norm\.bias: damaged"),
        (lambda file: file.update({"encoder.more": torch.ones(1)}), r"has model\.encoder\.more, which the "),
        (lambda file: file.update({"more": torch.ones(1)}), r"has more, which the model has not"),
        (
            lambda file: file.update({"model.encoder.norm.bias": torch.ones(32)}),
            r"has encoder\.norm\.bias, which the model has not",
        ),
    ],
    ids=["missing", "one more", "of no side", "under both names"],
)
def test_what_does_not_fit_is_refused(tmp_path, change, message):
    path = earlier(model(), tmp_path) / "model.safetensors"
    file = load_file(path)
    change(file)
    save_file(file, path, metadata={"format": "pt"})
    net = model()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_model(CosformerForConditionalGeneration, tmp_path)
    with pytest.raises(ValueError, match=message):
        load_weights(net, path)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_a_run_goes_on(tmp_path):
    """From a checkpoint of then to the weights of the run that nothing happened to; it is scored as it was,
    and another run begins with its weights."""
    run = recipes.build("reverse", scale="tiny", device="cpu", steps=4, save_every=2, eval_every=2)
    whole = train(run, tmp_path / "whole", progress=False, results=tmp_path / "results.jsonl")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for path in (tmp_path / "cut" / checkpoint.name(4), tmp_path / "cut" / "record.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    start = tmp_path / "cut" / checkpoint.name(2)
    written = start.rename(checkpoint.aside(tmp_path / "cut", 2))
    rename(written / "model.safetensors")
    (written / checkpoint.MANIFEST).unlink()
    assert checkpoint.finish(written) == start
    score = evaluate(start)
    assert score == evaluate(tmp_path / "whole" / checkpoint.name(2))
    record = train(run, tmp_path / "cut", progress=False, results=tmp_path / "results.jsonl")
    assert record["metric"] == whole["metric"]
    ends = [load_file(best(tmp_path / name) / "model.safetensors") for name in ("whole", "cut")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(x, ends[1][name]) for name, x in ends[0].items())
    other = run.replace(initial=str(start), steps=1, learning_rate=1e-12)
    made = train(other, tmp_path / "other", progress=False, results=tmp_path / "results.jsonl")
    assert made["metric"]["test"] == score
