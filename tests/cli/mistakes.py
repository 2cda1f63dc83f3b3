"""What a careless user types, and what the sentence has to say: the cases of test_usage_errors.py."""

import json
import os
import shutil

from cosformer.models import CosformerConfig, CosformerForCausalLM
from cosformer.training import recipes

RECORD = {"task": "t", "mechanism": "cosformer", "metric": {"name": "accuracy", "test": {"accuracy": 1.0}}}


def copy(saved, tmp_path, **changes):
    """The saved model with some fields of its configuration changed."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def damaged(saved, tmp_path, name, content):
    folder = copy(saved, tmp_path)
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content(path.read_bytes()))
    return folder


def without_tokenizer(saved, tmp_path):
    folder = copy(saved, tmp_path)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return folder


def demo_like(saved, tmp_path):
    """A model over bytes alone, without a token to begin with."""
    folder = without_tokenizer(saved, tmp_path)
    config = CosformerConfig.from_pretrained(folder)
    config.vocab_size = 256
    CosformerForCausalLM(config).save_pretrained(folder)
    return folder


def written(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def results(tmp_path, line):
    written(tmp_path, "results/task.jsonl", line)
    return ["report", "--results", tmp_path / "results", "--out", tmp_path / "out"]


# What was typed, given the saved model and an empty folder; and what the sentence has to say.
MISTAKES = {
    "command with a typo": (lambda s, t: ["genrate", s], "Did you mean generate?"),
    "another typo": (lambda s, t: ["ifno"], "Did you mean info?"),
    "unknown command": (lambda s, t: ["fly"], "there is no command 'fly'"),
    "option of no command": (lambda s, t: ["--versoin"], "Did you mean --version?"),
    "option with a typo": (lambda s, t: ["info", "--chek"], "Did you mean --check?"),
    "option with a hyphen": (lambda s, t: ["generate", s, "--top-k", "5"], "Did you mean --top_k?"),
    "shortened option": (lambda s, t: ["generate", s, "--temp", "1"], "there is no option --temp"),
    "no program": (lambda s, t: ["run"], "a program is missing"),
    "no module": (lambda s, t: ["run", "--", "-m"], "-m needs the name of a module"),
    "a module that is not there": (lambda s, t: ["run", "--", "-m", "no.where"], "no module 'no.where'"),
    "a program that is not there": (lambda s, t: ["run", "--", "pytset"], "Did you mean pytest?"),
    "a file that is not there": (lambda s, t: ["run", "--", t / "none.py"], "there is no file"),
    "no code": (lambda s, t: ["run", "--", "-c"], "-c needs Python code"),
    "an option of python": (
        lambda s, t: ["run", "--", "python", "-u", "x.py"],
        "must be followed by -c CODE",
    ),
    "one argument too many": (lambda s, t: ["info", "now"], "'now' is one argument too many"),
    "a size that is no number": (
        lambda s, t: ["train", "wikitext2", "model.num_attention_heads=x"],
        "num_attention_heads must be a positive int, but got 'x'",
    ),
    "no folder given": (lambda s, t: ["generate"], "folder"),
    "no such folder": (lambda s, t: ["generate", t / "none"], "there is no folder"),
    "a file for a folder": (lambda s, t: ["generate", s / "config.json"], "there is no folder"),
    "a folder without a model": (lambda s, t: ["generate", t], "has no config.json"),
    "weights cut short": (
        lambda s, t: ["generate", damaged(s, t, "model.safetensors", lambda b: b[: len(b) // 2])],
        "damaged or incomplete",
    ),
    "weights missing": (
        lambda s, t: ["generate", damaged(s, t, "model.safetensors", None)],
        "no model.safetensors",
    ),
    "weights of noise": (
        lambda s, t: ["generate", damaged(s, t, "model.safetensors", lambda b: b"\x80" * 100)],
        "damaged or incomplete",
    ),
    "configuration not JSON": (
        lambda s, t: ["generate", damaged(s, t, "config.json", lambda b: b"{")],
        "cannot be loaded",
    ),
    "another kind of model": (lambda s, t: ["generate", copy(s, t, model_type="bert")], "of type 'bert'"),
    "a classifier": (
        lambda s, t: ["generate", copy(s, t, architectures=["CosformerForSequenceClassification"])],
        "a CosformerForCausalLM is expected",
    ),
    "unknown attention": (
        lambda s, t: ["generate", copy(s, t, attention="cosfromer")],
        "attention must be one of",
    ),
    "impossible sizes": (
        lambda s, t: ["generate", copy(s, t, num_attention_heads=5)],
        "must be a multiple of",
    ),
    "weights of other sizes": (
        lambda s, t: ["generate", copy(s, t, intermediate_size=17)],
        "do not fit its configuration",
    ),
    "no tokenizer": (lambda s, t: ["generate", without_tokenizer(s, t)], "no tokenizer"),
    "a run without weights": (lambda s, t: ["generate", another_run(t)], "holds no checkpoint"),
    "nothing to continue": (lambda s, t: ["generate", demo_like(s, t)], "give --prompt or --context"),
    "no such context": (
        lambda s, t: ["generate", s, "--context", t / "none.txt"],
        "none.txt does not exist",
    ),
    "a folder for a context": (lambda s, t: ["generate", s, "--context", t], "is a folder"),
    "a pipe for a context": (
        lambda s, t: ["generate", s, "--context", pipe(t)],
        "pipe is a pipe or a device",
    ),
    "a folder of the system's": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--results", "/proc/x.jsonl"],
        "the folder /proc may not be written to",
    ),
    "a context that is no text": (
        lambda s, t: ["generate", s, "--context", written(t, "x", b"\xff\xfe\x00")],
        "not text in UTF-8",
    ),
    "a context beyond the horizon": (
        lambda s, t: ["generate", s, "--context", written(t, "x", "a" * 300)],
        "the model takes 256",
    ),
    "too many tokens": (lambda s, t: ["generate", s, "--tokens", "5000"], "ask for fewer --tokens"),
    "no tokens": (lambda s, t: ["generate", s, "--tokens", "0"], "a positive whole number is expected"),
    "half a token": (lambda s, t: ["generate", s, "--tokens", "0.5"], "not '0.5'"),
    "cold": (lambda s, t: ["generate", s, "--temperature", "-1"], "a number above 0.001"),
    "warm words": (lambda s, t: ["generate", s, "--temperature", "warm"], "not 'warm'"),
    "the likeliest of three": (lambda s, t: ["generate", s, "--greedy", "--top_k", "3"], "with no --top_k"),
    "a seed of the likeliest": (lambda s, t: ["generate", s, "--greedy", "--seed", "1"], "with no --seed"),
    "colder than cold": (lambda s, t: ["generate", s, "--temperature", "1e-43"], "a number above 0.001"),
    "a batch of one text": (lambda s, t: ["generate", s, "--batch_size", "2"], "is for --prompts"),
    "a second recipe": (lambda s, t: ["train", "mqar", "recipe=copy"], "the recipe is the first word, mqar"),
    "a field of other models": (lambda s, t: ["train", "mqar", "model.dtype=bogus"], "has no field 'dtype'"),
    "a field with a typo and no data": (
        lambda s, t: ["train", "wikitext2", "--print_config", "model.hiden_size=64"],
        "did you mean hidden_size?",
    ),
    "more than everything": (lambda s, t: ["generate", s, "--top_p", "2"], "at most 1"),
    "an option without its value": (lambda s, t: ["generate", s, "--prompt"], "--prompt"),
    "no such device": (lambda s, t: ["generate", s, "--device", "toaster"], "toaster is not a device"),
    "another device": (lambda s, t: ["generate", s, "--device", "meta"], "not supported"),
    "no GPU": (lambda s, t: ["generate", s, "--device", "cuda"], "sees no CUDA GPU"),
    "too few GPUs": (lambda s, t: ["generate", s, "--device", "cuda:9"], "cuda:9 is not here"),
    "no such dtype": (lambda s, t: ["generate", s, "--dtype", "float23"], "Did you mean float32?"),
    "a port past the last": (lambda s, t: ["serve", s, "--port", "65536"], "from 0 to 65,535"),
    "nothing to serve": (lambda s, t: ["serve", t / "none"], "there is no folder"),
    "no such benchmark": (lambda s, t: ["bench", "oprator"], "Did you mean operator?"),
    "option of a benchmark": (
        lambda s, t: ["bench", "operator", "--lenghts", "64"],
        "Did you mean --lengths?",
    ),
    "no records": (
        lambda s, t: ["report", "--results", t / "a", "--benchmarks", t / "b"],
        "there are no records",
    ),
    "no such folder beside one that is there": (
        lambda s, t: [*results(t, json.dumps(RECORD)), "--benchmarks", t / "b"],
        "b: there is no such folder",
    ),
    "the usual folder, which is not there": (
        lambda s, t: ["report", "--results", "results", "--benchmarks", written(t, "b/x.json", "{}").parent],
        "--results results: there is no such folder",
    ),
    "a record cut short": (
        lambda s, t: results(t, json.dumps(RECORD) + "\n" + '{"task": '),
        "line 2, is not JSON",
    ),
    "a record without a metric": (lambda s, t: results(t, '{"task": "t"}'), "lacks mechanism, metric"),
    "a record that is a list": (lambda s, t: results(t, "[1]"), "holds no record"),
    "a record that is no text": (lambda s, t: results(t, b"\xff\xff"), "cannot be read"),
    "a file for the records": (
        lambda s, t: ["report", "--results", written(t, "f", "")],
        "the folder of the records",
    ),
    "a file to write into": (
        lambda s, t: [*results(t, json.dumps(RECORD))[:-1], written(t, "f", "")],
        "f is a file",
    ),
    "a folder inside a file": (lambda s, t: ["demo", "--out", written(t, "f", "") / "x"], "cannot be made"),
    "a record without a score": (
        lambda s, t: results(t, '{"task": "t", "mechanism": "m", "metric": {}}'),
        "has no score on the test split",
    ),
    "a record with an empty score": (lambda s, t: results(t, scored({})), "line 1, is no record of a run"),
    "a record with a null score": (lambda s, t: results(t, scored(None)), "line 1, is no record of a run"),
    "a record with a score in words": (
        lambda s, t: results(t, scored({"accuracy": "high"})),
        "has 'high' for accuracy, where a number is expected",
    ),
    "a record without settings": (
        lambda s, t: results(t, json.dumps(RECORD | {"settings": None})),
        "has None for settings, where an object is expected",
    ),
    "no such recipe": (lambda s, t: ["train", "mqra"], "did you mean mqar?"),
    "no such recipe file": (lambda s, t: ["train", t / "mine.py"], "mine.py"),
    "a recipe that is no Python": (lambda s, t: ["train", written(t, "r.py", "def (")], "cannot be read"),
    "a recipe without a run": (lambda s, t: ["train", written(t, "r.py", "")], "has no function build"),
    "no such scale": (lambda s, t: ["train", "mqar", "--scale", "smal"], "Did you mean small?"),
    "the recommended model with a typo": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--attention", "recomended"],
        "Did you mean recommended?",
    ),
    "no such attention": (
        lambda s, t: ["train", "mqar", "--attention", "cosfromer"],
        "Did you mean cosformer?",
    ),
    "an attention that the model cannot take": (
        lambda s, t: ["compare", "mqar", "--scale", "tiny", "--attentions", "cosformer,bigbird"],
        "'bigbird' is not",
    ),
    "an attention as a setting": (
        lambda s, t: ["train", "mqar", "attention=softmax"],
        "write --attention softmax",
    ),
    "an attention as a setting of a comparison": (
        lambda s, t: ["compare", "mqar", "attention=softmax"],
        "write --attentions softmax",
    ),
    "a scale as a setting": (lambda s, t: ["train", "mqar", "scale=paper"], "write --scale paper"),
    "a start from nowhere": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "initial=somebody/model"],
        "there is no folder 'somebody/model'",
    ),
    "two starts": (
        lambda s, t: ["train", "pathfinder", "--scale", "tiny", "--pretrain", "5", f"initial={s}"],
        "leave out --pretrain or initial",
    ),
    "nothing to pretrain on": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--pretrain", "5"],
        "--pretrain: of must be a task that classifies",
    ),
    "a number for a model": (
        lambda s, t: ["train", "mqar", "model.hidden_size=8", "model=5"],
        "write model.hidden_size=64",
    ),
    "no such compiler": (
        lambda s, t: ["train", "mqar", "compile=true", "compile_backend=foo"],
        "inductor, tvm, but got 'foo'",
    ),
    "no recipe": (lambda s, t: ["train"], "required: recipe. See"),
    "no benchmark": (lambda s, t: ["bench"], "required: benchmark. See"),
    "a setting without a value": (lambda s, t: ["train", "mqar", "steps"], "NAME=VALUE is expected"),
    "a setting with a typo": (lambda s, t: ["train", "mqar", "step=3"], "did you mean steps?"),
    "a setting of no part": (
        lambda s, t: ["train", "mqar", "optimiser.lr=3"],
        "has no settings of its own",
    ),
    "a setting of the wrong kind": (lambda s, t: ["train", "mqar", "steps=many"], "steps must be"),
    "a setting of no model": (
        lambda s, t: ["train", "mqar", "model.hiden_size=3"],
        "did you mean hidden_size?",
    ),
    "a setting of no task": (lambda s, t: ["train", "mqar", "task_settings.pair=3"], "no parameter 'pair'"),
    "sizes that do not fit": (lambda s, t: ["train", "mqar", "model.hidden_size=-1"], "hidden_size"),
    "training into a file": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--folder", written(t, "f", "")],
        "f is a file",
    ),
    "results into a folder": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--results", t],
        "is a folder; a file is expected",
    ),
    "results inside a file": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--results", written(t, "f", "") / "x.jsonl"],
        "f/x.jsonl: the folder",
    ),
    "training in another run's folder": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "--folder", finished(another_run(t))],
        "holds another run",
    ),
    "training on no GPU": (
        lambda s, t: ["train", "mqar", "--scale", "tiny", "device=cuda", "--folder", t / "r"],
        "sees no GPU",
    ),
    "no run to score": (lambda s, t: ["eval", t], "is not the folder of a run"),
    "no folder to score": (lambda s, t: ["eval", t / "none"], "there is no folder"),
    "no such split": (lambda s, t: ["eval", t, "--split", "tset"], "Did you mean test?"),
    "a run without checkpoints": (lambda s, t: ["eval", another_run(t)], "holds no checkpoint"),
    "no folder to export": (lambda s, t: ["export", t / "none", t / "out"], "there is no folder"),
    "no run to export": (lambda s, t: ["export", t, t / "out"], "is not the folder of a run"),
    "an export over something": (lambda s, t: ["export", t, another_run(t)], "is there already"),
    "comparing with nobody": (
        lambda s, t: ["compare", "mqar", "--attentions", "cosformer,sofmax"],
        "Did you mean softmax?",
    ),
    "no such task": (lambda s, t: ["data", "mqra"], "Did you mean mqar?"),
    "data that is missing": (lambda s, t: ["data", "enwik8"], "enwik8/enwik8 is missing"),
    "data that cannot be fetched": (lambda s, t: ["data", "mqar", "--fetch"], "cannot be fetched"),
    "fetching everything": (lambda s, t: ["data", "--fetch"], "--fetch needs the name of a task"),
    "training without data": (
        lambda s, t: ["train", "enwik8", "--scale", "tiny", "--folder", t / "r"],
        "enwik8/enwik8 is missing",
    ),
    "damaged data": (
        lambda s, t: ["data", "enwik8", *damaged_data(t)],
        "enwik8",
    ),
    "a task with a wrong setting": (lambda s, t: ["data", "mqar", "pairs=0"], "pairs"),
    "no time": (lambda s, t: ["demo", "--seconds", "0"], "a number above 0"),
    "a demo over other people's files": (
        lambda s, t: ["demo", "--tiny", "--fresh", "--out", written(t, "d/report.html", "mine").parent],
        "holds report.html, and not of a demonstration",
    ),
    "a cache that cannot be written": (
        lambda s, t: ["data", "listops", *unusable_cache(t)],
        "; set COSFORMER_CACHE to one that can.\n",
    ),
    "a demo into a file": (lambda s, t: ["demo", "--out", written(t, "f", "")], "f is a file"),
}


def scored(test):
    return json.dumps(RECORD | {"metric": {"name": "accuracy", "test": test}})


def unusable_cache(tmp_path):
    written(tmp_path, "cache", "")
    return []


def damaged_data(tmp_path):
    written(tmp_path, "data/enwik8/enwik8.xz", b"this is no archive")
    return []


def another_run(tmp_path):
    """The folder of a run that was begun with other settings."""
    made = recipes.build("mqar", scale="tiny", seed=5)
    text = json.dumps({"id": "x", "run": made.to_dict()})
    return written(tmp_path, "other/run.json", text).parent


def finished(folder):
    return written(folder, "record.json", "{}").parent
