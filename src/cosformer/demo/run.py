"""The demonstration from end to end. Each part is recorded when it is finished, so that a demonstration that
was stopped continues after the last one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cosformer import tasks
from cosformer.atomic import replace
from cosformer.demo import measure, training
from cosformer.demo.maps import attention_maps, most_concentrated, over_largest
from cosformer.demo.settings import Settings
from cosformer.demo.training import RESULTS, RUNS
from cosformer.reading import json_object
from cosformer.report.sections.demo import MECHANISMS, document
from cosformer.report.write import PLOTS, write
from cosformer.terminal import Progress

RECORD = "record.json"
WRITTEN = ("report.html", "report.md", PLOTS, RUNS, RESULTS, *MECHANISMS)
# Long enough to show the indentation; the model would otherwise continue with blanks.
PROMPT = """class Reader:
    \"\"\"Reads files.\"\"\"

    def __init__(self, path):
        self.path = path

    def read(self):
"""
TEMPERATURE = 0.9


class Occupied(ValueError):
    """The folder holds files that would be overwritten."""


class Demo:
    """A folder with the finished parts: record.json, and the two models. A demonstration with other settings
    is replaced only with `fresh`, and other files are never overwritten."""

    def __init__(
        self, folder: Path, settings: Settings, machine: dict[str, Any], progress: Progress,
        fresh: bool = False,
    ):  # fmt: skip
        self.folder, self.settings, self.progress = folder, settings, progress
        model = settings.run("cosformer").model
        sizes = {"layers": model["num_hidden_layers"], "hidden_size": model["hidden_size"]}
        wanted = json.loads(json.dumps(asdict(settings) | sizes))
        self.record: dict[str, Any] = {"settings": wanted, "machine": machine}
        kept = _earlier(folder / RECORD)
        if not {"settings", "machine"} <= set(kept):
            strange = [name for name in (RECORD, *WRITTEN) if (folder / name).exists()]
            if strange:
                raise Occupied(
                    f"{folder} holds {', '.join(strange)}, and not of a demonstration: give another folder."
                )
        elif fresh:
            for name in (RUNS, RESULTS):
                _remove(folder / name)
            self._write()
        elif not _is_whole(kept):
            raise Occupied(f"{folder} holds a {RECORD} that is damaged: give another folder, or --fresh.")
        elif kept["settings"] != wanted:
            raise Occupied(
                f"{folder} holds a demonstration of other settings: give another folder, or --fresh to write "
                "over it."
            )
        else:
            self.record = kept

    def finished(self) -> list[str]:
        return [name for name, _ in self._parts() if name in self.record]

    def _parts(self) -> list[tuple[str, Callable[[], Any]]]:
        return [
            ("steps", lambda: training.affordable(self.settings)),
            ("training", self._train),
            ("costs", self._measure),
            ("maps", self._maps),
            ("samples", self._samples),
        ]

    def run(self) -> Path:
        """Runs the parts that are not finished, then renders the page."""
        for name, work in self._parts():
            if name not in self.record:
                self.record[name] = work()
                self._write()
        return write(document(self.record), self.folder)[0]

    def _write(self) -> None:
        replace(self.folder / RECORD, json.dumps(self.record) + "\n")

    def _train(self) -> dict[str, Any]:
        from cosformer.models import byte_tokenizer

        found = training.train(self.settings, self.record["steps"], self.folder, self.progress)
        for name in MECHANISMS:
            # In one folder each, with a tokenizer, so that `cosformer generate` can load them.
            model = self._from(found["models"][name]["best"])
            model.save_pretrained(self.folder / name)
            byte_tokenizer(max_length=model.config.max_position_embeddings).save_pretrained(
                self.folder / name
            )
        return found

    def _from(self, name: str) -> Any:
        from cosformer.models import CosformerForCausalLM, loading

        return loading.load_model(CosformerForCausalLM, self.folder / name).eval()

    def _measure(self) -> dict[str, Any]:
        longest = max(self.settings.lengths)
        self.progress.start(1)
        self.progress.step(f"both read contexts of up to {longest:,} tokens")
        measured = measure.measure([self.folder / name for name in MECHANISMS], self.settings)
        self.progress.end()
        found = {}
        for name, costs in zip(MECHANISMS, measured, strict=True):
            config = self._from(name).config
            found[name] = costs | {"far_cache_bytes": 4 * config.state_size(self.settings.far)}
        return found

    def _maps(self) -> dict[str, Any]:
        text = tasks.build("python", length=self.settings.map_length).dataset("test")
        ids = text[len(text) // 3]["input_ids"][None]
        found: dict[str, Any] = {"text": bytes(ids[0].tolist()).decode(errors="replace")}
        for name in MECHANISMS:
            model = self._from(name)
            found[name] = [self._map(model, i, w) for i, w in enumerate(attention_maps(model, ids))]
        return found

    def _map(self, model: Any, layer: int, weights: Tensor) -> dict[str, Any]:
        """One head of a layer: for cosFormer, heads with wider windows in deeper layers; for softmax, the
        head with the most concentrated weights."""
        found: dict[str, Any] = {}
        if model.config.attention_names[layer] == "cosformer":
            head = min(layer, len(weights) - 1)
            found["window"] = model.config.attention_parameters[layer]["windows"][head]
            chosen = over_largest(weights[head])
        else:
            head, chosen = most_concentrated(weights)
        return found | {"head": head, "weights": [[round(x, 3) for x in row] for row in chosen.tolist()]}

    def _samples(self) -> dict[str, Any]:
        from cosformer.models import byte_tokenizer

        tokenizer = byte_tokenizer()
        ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
        found: dict[str, Any] = {"prompt": PROMPT, "temperature": TEMPERATURE}
        for name in MECHANISMS:
            torch.manual_seed(self.settings.seed)
            made = self._from(name).generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.settings.sample_tokens,
                do_sample=True,
                temperature=TEMPERATURE,
            )
            found[name] = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        return found


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _earlier(path: Path) -> dict[str, Any]:
    try:
        return json_object(path)
    except (OSError, ValueError):
        return {}


def _is_whole(record: dict[str, Any]) -> bool:
    """Whether the finished parts of a record have the expected types."""
    kinds: dict[str, Any] = {"steps": int, "training": dict, "costs": dict, "maps": dict, "samples": dict}
    if not all(isinstance(record[name], kind) for name, kind in kinds.items() if name in record):
        return False
    models = record.get("training", {"models": {}}).get("models")
    named = [models, record.get("costs", {}), record.get("maps", {}), record.get("samples", {})]
    return all(isinstance(part, dict) and (not part or set(MECHANISMS) <= set(part)) for part in named)
