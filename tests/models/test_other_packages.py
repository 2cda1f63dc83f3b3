"""Packages that people bring their models to (`make oracles`): a folder, `import cosformer`, no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cosformer.models import CosformerForCausalLM, byte_tokenizer, token_fields
from tests.models.tiny import build, tokens

pytestmark = pytest.mark.oracle
ROOT = Path(__file__).parents[2]
WHY = "not installed; `make oracles` does so"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small language model over bytes, with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    net = build(CosformerForCausalLM, torch.float32, initializer_range=0.02, **token_fields(tokenizer))
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("method", ["LoraConfig", "IA3Config", "VeraConfig"])
def test_peft_knows_which_layers_to_change(method, saved):
    peft = pytest.importorskip("peft", reason=WHY)
    net = CosformerForCausalLM.from_pretrained(saved)
    tuned = peft.get_peft_model(net, getattr(peft, method)())
    ids = tokens(2, 9)
    tuned(input_ids=ids, labels=ids).loss.backward()
    changed = [p for p in tuned.parameters() if p.requires_grad]
    assert changed
    assert sum(p.numel() for p in changed) < 0.2 * net.num_parameters()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in changed)
    assert tuned.generate(input_ids=ids, max_new_tokens=2, do_sample=False).shape == (2, 11)


def test_trl_fine_tunes_a_folder(saved, tmp_path):
    trl = pytest.importorskip("trl", reason=WHY)
    datasets = pytest.importorskip("datasets", reason=WHY)
    arguments = trl.SFTConfig(
        str(tmp_path), max_steps=20, learning_rate=0.01, use_cpu=True, report_to="none", max_length=64,
        per_device_train_batch_size=4, logging_steps=1, disable_tqdm=True, bf16=False, save_strategy="no",
    )  # fmt: skip
    texts = datasets.Dataset.from_dict({"text": ["one two three four"] * 80})
    trainer = trl.SFTTrainer(model=str(saved), args=arguments, train_dataset=texts)
    assert type(trainer.model) is CosformerForCausalLM
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]


def test_lm_eval_is_started_with_our_models(saved, tmp_path):
    """From the command line, in a process of its own; its score is the model's own."""
    pytest.importorskip("lm_eval", reason=WHY)
    rows = [{"text": "one two", "target": " three"}, {"text": "a", "target": " b"}]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.yaml").write_text(
        "task: words\ndataset_path: json\ntest_split: test\noutput_type: loglikelihood\n"
        f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        'doc_to_text: "{{text}}"\ndoc_to_target: "{{target}}"\nmetric_list: [{metric: perplexity}]\n'
        "metadata: {version: 1}\n"
    )
    command = [
        sys.executable, "-m", "cosformer", "run", "--", "lm_eval", "--model", "hf", "--tasks", "words",
        "--model_args", f"pretrained={saved},dtype=float32", "--include_path", str(tmp_path),
        "--device", "cpu", "--output_path", str(tmp_path / "out"),
    ]  # fmt: skip
    where = {"PYTHONPATH": str(ROOT / "src"), "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **OFFLINE, **where}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())
    found = record["results"]["words"]["perplexity,none"]
    net, tokenizer = CosformerForCausalLM.from_pretrained(saved).eval(), byte_tokenizer()
    scores = []
    for row in rows:
        prompt, target = (tokenizer(row[part], add_special_tokens=False).input_ids for part in row)
        ids = torch.tensor([prompt + target])
        log_p = net(ids).logits[0].log_softmax(-1)
        scores.append(sum(log_p[len(prompt) + i - 1, t] for i, t in enumerate(target)))
    expected = torch.stack(scores).mean().neg().exp()
    assert found == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [{"target_modules": ["embed_tokens"]}, {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]}],
    ids=["embeddings", "tokens"],
)
def test_peft_around_the_embeddings(options):
    peft = pytest.importorskip("peft", reason=WHY)
    net = build(CosformerForCausalLM, torch.float32, tie_word_embeddings=False)
    tuned, ids = peft.get_peft_model(net, peft.LoraConfig(**options)), tokens(2, 6)
    tuned(input_ids=ids, labels=ids).loss.backward()
    learnt = [name for name, p in tuned.named_parameters() if p.grad is not None]
    assert any("embed_tokens" in name for name in learnt)
    with pytest.raises(ValueError, match="the model's vocabulary, but got 64"):
        tuned(input_ids=torch.full((1, 2), 64))
    how = {"max_new_tokens": 4, "do_sample": False}
    cached, whole = (tuned.eval().generate(input_ids=ids, use_cache=x, **how) for x in (True, False))
    assert torch.equal(cached, whole)


def test_an_adapter_that_the_loss_would_not_see_is_refused():
    peft = pytest.importorskip("peft", reason=WHY)
    net = build(CosformerForCausalLM, torch.float32, head_loss="one_vs_each", tie_word_embeddings=False)
    tuned = peft.get_peft_model(net.train(), peft.LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(ValueError, match=r"reads the weight of lm_head alone, which is a Linear with a forw"):
        tuned(input_ids=tokens(1, 4), labels=tokens(1, 4))
    tuned.eval()(input_ids=tokens(1, 4), labels=tokens(1, 4))  # the cross entropy, which sees it
