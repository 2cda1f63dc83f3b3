"""transformers' own mixins, as they lie in its source distribution, made importable.

Three of their imports are not in that distribution: the mixins for generation and for exporting, which stand
empty here, and the values that every configuration has to keep, which are ours.
"""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tests.models.mixins.fetch import FOLDER, VERSION, WHY_NOT

PACKAGE = "transformers_tests"
# By these tables its tests know what the heads of a model are; only their own modules see our additions.
NAMES = {
    "MODEL_MAPPING_NAMES": ("CosformerModel", "CosformerEncoderDecoderModel"),
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "CosformerForCausalLM",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "CosformerForMaskedLM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "CosformerForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "CosformerForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "CosformerForQuestionAnswering",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "CosformerForConditionalGeneration",
}
KEPT = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", "architectures": ["A"],
        "id2label": {0: "label"}, "label2id": {"label": 0}, "problem_type": "regression"}  # fmt: skip


def reason() -> str | None:
    """Why the mixins cannot be run here; None if they can."""
    if find_spec("parameterized") is None:
        return "the package parameterized is not installed: `make oracles` does so"
    if (FOLDER / "test_modeling_common.py").is_file():
        return None
    why = WHY_NOT.read_text() if WHY_NOT.is_file() else "it was not asked for: `make oracles` does so"
    return f"the source distribution of transformers {VERSION} is not here ({why})"


def load(name: str) -> Any:
    """One of its test modules."""
    if PACKAGE not in sys.modules:
        (FOLDER / "__init__.py").touch()  # it loads its own folder as a package
        package = ModuleType(PACKAGE)
        package.__path__ = [str(FOLDER)]
        sys.modules[PACKAGE] = package
        _stand_in("generation", "test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
        _stand_in("exporters", "test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
        _stand_in("utils", "test_configuration_utils", config_common_kwargs=KEPT)
    module = importlib.import_module(f"{PACKAGE}.{name}")
    for table, head in NAMES.items():
        if hasattr(module, table):
            setattr(module, table, {**getattr(module, table), "cosformer": head})
    return module


def _stand_in(folder: str, name: str, **content: Any) -> None:
    parent, module = ModuleType(f"{PACKAGE}.{folder}"), ModuleType(f"{PACKAGE}.{folder}.{name}")
    vars(module).update(content)
    sys.modules[parent.__name__], sys.modules[module.__name__] = parent, module
