"""The demonstration from end to end. Each part is written down when it is finished, so that one that was
stopped goes on from the last of them."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cosformer.demo import corpus, measure, page, training
from cosformer.demo.maps import attention_maps, most_concentrated
from cosformer.demo.settings import MECHANISMS, Settings
from cosformer.report.files import replace
from cosformer.report.write import write
from cosformer.terminal import Progress

RECORD = "record.json"
PROMPT = "def read(self, path):\n"


class Demo:
    """A folder with what is finished so far: record.json, and the two models."""

    def __init__(self, folder: Path, settings: Settings, machine: dict[str, Any], progress: Progress):
        self.folder, self.settings, self.progress = folder, settings, progress
        wanted = json.loads(json.dumps(asdict(settings)))
        self.record: dict[str, Any] = {"settings": wanted, "machine": machine}
        kept = _earlier(folder / RECORD)
        if kept.get("settings") == wanted:
            self.record = kept

    def finished(self) -> list[str]:
        return [name for name, _ in self._parts() if name in self.record]

    def _parts(self) -> list[tuple[str, Callable[[], Any]]]:
        return [
            ("training", self._train),
            ("costs", self._measure),
            ("maps", self._maps),
            ("samples", self._samples),
        ]

    def run(self) -> Path:
        """Whatever is not finished; then the page."""
        for name, work in self._parts():
            if name not in self.record:
                self.record[name] = work()
                replace(self.folder / RECORD, json.dumps(self.record) + "\n")
        return write(page.document(self.record), self.folder)[0]

    def _train(self) -> dict[str, Any]:
        from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer

        text, held_out = corpus.corpus()
        models = {}
        for name in MECHANISMS:
            torch.manual_seed(self.settings.seed)  # the same first weights: both have the same shapes
            models[name] = CosformerForCausalLM(CosformerConfig(**self.settings.model(name)))
        found = training.train(models, text, held_out, self.settings, self.progress)
        for name, model in models.items():
            model.save_pretrained(self.folder / name)
            byte_tokenizer(max_length=self.settings.horizon).save_pretrained(self.folder / name)
        return found | {"text_bytes": len(text)}

    def _load(self, name: str) -> Any:
        from cosformer.models import CosformerForCausalLM

        return CosformerForCausalLM.from_pretrained(self.folder / name).eval()

    def _measure(self) -> dict[str, Any]:
        self.progress.start(len(MECHANISMS))
        found = {}
        for name, title in MECHANISMS.items():
            self.progress.step(f"{title} reads contexts of up to {max(self.settings.lengths):,} tokens")
            config = self._load(name).config
            numbers = config.build_attention().state_size(
                self.settings.far, num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim
            )
            found[name] = measure.measure(self.folder / name, self.settings) | {
                "far_cache_bytes": 4 * numbers * config.num_hidden_layers
            }
        self.progress.end()
        return found

    def _maps(self) -> dict[str, Any]:
        _, held_out = corpus.corpus()
        begin = len(held_out) // 3
        ids = held_out[begin : begin + self.settings.map_length].long()[None]
        found: dict[str, Any] = {"text": bytes(ids[0].tolist()).decode(errors="replace")}
        for name in MECHANISMS:
            layers = [most_concentrated(w) for w in attention_maps(self._load(name), ids)]
            found[name] = [
                {"head": h, "weights": [[round(x, 3) for x in row] for row in w.tolist()]} for h, w in layers
            ]
        return found

    def _samples(self) -> dict[str, Any]:
        from cosformer.models import byte_tokenizer

        tokenizer = byte_tokenizer()
        ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
        found: dict[str, Any] = {"prompt": PROMPT, "temperature": 0.7}
        for name in MECHANISMS:
            torch.manual_seed(self.settings.seed)
            made = self._load(name).generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.settings.sample_tokens,
                do_sample=True,
                temperature=0.7,
            )
            found[name] = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        return found


def _earlier(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
