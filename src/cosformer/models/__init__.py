"""One Hugging Face family; the attention is a field of its configuration.

Importing this package needs transformers, and makes the family known to the Auto classes.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cosformer import registration
from cosformer.models.cache import CosformerCache
from cosformer.models.classification import (
    CosformerForSequenceClassification,
    CosformerForSequencePairClassification,
)
from cosformer.models.conditional import CosformerForConditionalGeneration
from cosformer.models.config import CosformerConfig
from cosformer.models.encoder_decoder import CosformerEncoderDecoderModel
from cosformer.models.horizon import HorizonError
from cosformer.models.language import CosformerForCausalLM, CosformerForMaskedLM
from cosformer.models.model import CosformerModel
from cosformer.models.packing import PackingCollator
from cosformer.models.split import sequence_parallel, shard_batch
from cosformer.models.tagging import CosformerForQuestionAnswering, CosformerForTokenClassification
from cosformer.models.tokenizers import byte_tokenizer, token_fields, train_bpe

__all__ = [
    "CosformerCache",
    "CosformerConfig",
    "CosformerEncoderDecoderModel",
    "CosformerForCausalLM",
    "CosformerForConditionalGeneration",
    "CosformerForMaskedLM",
    "CosformerForQuestionAnswering",
    "CosformerForSequenceClassification",
    "CosformerForSequencePairClassification",
    "CosformerForTokenClassification",
    "CosformerModel",
    "HorizonError",
    "PackingCollator",
    "byte_tokenizer",
    "sequence_parallel",
    "shard_batch",
    "token_fields",
    "train_bpe",
]

AutoConfig.register("cosformer", CosformerConfig)
AutoModel.register(CosformerConfig, CosformerModel)
AutoModelForCausalLM.register(CosformerConfig, CosformerForCausalLM)
# By this transformers' Trainer knows that labels are moved by one, where it smooths them.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["cosformer"] = CosformerForCausalLM.__name__
AutoModelForMaskedLM.register(CosformerConfig, CosformerForMaskedLM)
AutoModelForSequenceClassification.register(CosformerConfig, CosformerForSequenceClassification)
AutoModelForTokenClassification.register(CosformerConfig, CosformerForTokenClassification)
AutoModelForQuestionAnswering.register(CosformerConfig, CosformerForQuestionAnswering)
AutoModelForSeq2SeqLM.register(CosformerConfig, CosformerForConditionalGeneration)
# `transformers serve` and others look for the class that a saved configuration names in transformers itself.
registration.name_classes({name: globals()[name] for name in __all__ if name.startswith("CosformerFor")})
