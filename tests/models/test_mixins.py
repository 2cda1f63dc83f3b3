"""transformers' own tests of a model (`make oracles`), against every head of the family."""

import unittest

import pytest
import torch

from cosformer import models
from tests.models.mixins import left_out, suite
from tests.models.tiny import config, tokens

pytestmark = pytest.mark.oracle
WHY_NOT = suite.reason()
HEADS = {
    "Decoder": (models.CosformerModel, models.CosformerForCausalLM),
    "Encoder": (
        models.CosformerModel, models.CosformerForMaskedLM, models.CosformerForSequenceClassification,
        models.CosformerForTokenClassification, models.CosformerForQuestionAnswering,
    ),
    "EncoderDecoder": (models.CosformerEncoderDecoderModel, models.CosformerForConditionalGeneration),
}  # fmt: skip


class Tester:
    """What the mixins ask for: a tiny configuration, and inputs for it."""

    __test__ = False
    batch_size, seq_length, num_hidden_layers, vocab_size, hidden_size = 3, 7, 2, 64, 32
    is_training = True
    base_model_class, causal_lm_class = models.CosformerModel, models.CosformerForCausalLM

    def __init__(self, parent, kind, mechanism):
        self.kind, self.mechanism = kind, mechanism
        # Its tests of hidden states read these.
        self.encoder_seq_length = self.decoder_seq_length = self.key_length = self.seq_length

    def get_config(self):
        causal = {"Decoder": True, "Encoder": False, "EncoderDecoder": None}[self.kind]
        fields = {"attention": self.mechanism, "causal": causal, "initializer_range": 0.02, "num_labels": 3}
        return config(**fields, is_encoder_decoder=self.kind == "EncoderDecoder")

    def prepare_config_and_inputs_for_common(self):
        shape = (self.batch_size, self.seq_length)
        inputs = {"input_ids": tokens(*shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}
        if self.kind == "EncoderDecoder":
            inputs["decoder_input_ids"] = tokens(*shape)
        return self.get_config(), inputs


def build(kind, mechanism):
    """A TestCase with all mixins, for the heads of a kind."""
    common, configuration = suite.load("test_modeling_common"), suite.load("test_configuration_common")
    generation = suite.load("generation.test_utils")
    bases = (common.ModelTesterMixin,)
    if kind != "Encoder":
        bases = (*bases, generation.GenerationTesterMixin)
    if kind == "Decoder":
        bases = (*bases, suite.load("test_training_mixin").TrainingTesterMixin)

    class Case(*bases, unittest.TestCase):
        all_model_classes = HEADS[kind]
        has_attentions = False  # the weights are never formed
        test_can_init_all_missing_weights_before_2023 = True  # it looks for a year, and finds none
        is_encoder_decoder = kind == "EncoderDecoder"

        def setUp(self):
            torch.manual_seed(0)
            self.model_tester = Tester(self, kind, mechanism)
            self.config_tester = configuration.ConfigTester(
                self, config_class=models.CosformerConfig, hidden_size=32
            )

        def skipTest(self, reason):
            assert left_out.may_be(reason), f"left out for a reason of its own: {reason}"
            super().skipTest(reason)

        def test_config(self):
            self.config_tester.run_common_tests()

    Case.__name__ = Case.__qualname__ = f"Test{kind}{mechanism.capitalize()}"
    return Case


if WHY_NOT is None:
    for _kind in HEADS:
        for _mechanism in ("cosformer", "softmax"):
            _case = build(_kind, _mechanism)
            globals()[_case.__name__] = _case
    del _case
else:

    def test_the_mixins_of_transformers():
        pytest.skip(WHY_NOT)
