"""`import cosformer` makes the models known to transformers and PEFT when those come, and brings neither."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import cosformer
from cosformer import registration
from cosformer.models import CosformerForCausalLM
from tests.models.tiny import build

SOURCE = Path(cosformer.__file__).parents[1]
PROGRAM = """
import sys
import cosformer
assert not {"torch", "transformers", "peft"} & set(sys.modules)
holder = type(sys)("holder")
sys.modules["holder"] = holder
exec("import transformers", vars(holder))
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
assert "cosformer" in CONFIG_MAPPING and "cosformer" in list(CONFIG_MAPPING)
assert "cosformer.models" not in sys.modules, "it comes when a configuration asks for it"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
import transformers
for module in (transformers, holder.transformers):
    assert type(model) is module.CosformerForCausalLM, "where `transformers serve` looks for it"
assert type(model.config) is dict(CONFIG_MAPPING.items())["cosformer"]
"""


def test_a_new_process_needs_one_import_and_nothing_else(tmp_path):
    build(CosformerForCausalLM, torch.float32).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120, env={"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def peft(tmp_path, monkeypatch):
    """A package in PEFT's place, with two of its tables."""
    package = tmp_path / "peft" / "utils"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "constants.py").write_text(
        'TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING = {"llama": ["q_proj", "v_proj"]}\n'
        'TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING = {"llama": ["input_layernorm"]}\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("peft")
def test_peft_gets_the_layers_that_it_changes_in_llama():
    from peft.utils import constants

    assert constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["cosformer"] == ["q_proj", "v_proj"]
    assert "cosformer" not in constants.TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING
    names = [name for name, _ in build(CosformerForCausalLM).named_modules()]
    assert all(any(name.endswith(layer) for name in names) for layer in registration.LAYERS)


def test_what_is_there_already_is_told_at_once(monkeypatch):
    """cosformer may be imported last; and once is enough."""
    there = ModuleType("there")
    told = []
    monkeypatch.setitem(sys.modules, "there", there)
    monkeypatch.setattr(registration, "AFTER", {"there": told.append})
    others = [finder for finder in sys.meta_path if not isinstance(finder, registration._Watch)]
    monkeypatch.setattr(sys, "meta_path", others)
    registration.watch()
    registration.watch()
    assert told == [there]
    assert sum(isinstance(finder, registration._Watch) for finder in sys.meta_path) == 1
