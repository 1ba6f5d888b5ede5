"""A sample of benchmarks/sweep.py: nothing is wrong, and what is wrong is noticed."""

import pytest
import sweep_checks
import transformers
from sweep_models import classes

from smoothtune.core import objective
from smoothtune.nn import hooks

pytestmark = pytest.mark.skipif(
    transformers.__version__.startswith("4."), reason="configurations are no dataclasses"
)
FAST = [
    "BertForSequenceClassification",
    "BartForConditionalGeneration",
    "MixtralForCausalLM",
    "ViTForImageClassification",
]
SLOW = [
    "AlbertForMaskedLM",
    "BartForCausalLM",
    "BertForPreTraining",
    "BertLMHeadModel",
    "BloomForCausalLM",
    "CLIPModel",
    "DebertaV2ForTokenClassification",
    "FalconMambaForCausalLM",
    "FunnelForQuestionAnswering",
    "Gemma3ForConditionalGeneration",
    "GPT2ForTokenClassification",
    "GptOssForCausalLM",
    "LlamaForQuestionAnswering",
    "LongformerForMaskedLM",
    "MBartForSequenceClassification",
    "MPNetForMultipleChoice",
    "OpenAIGPTLMHeadModel",
    "RwkvForCausalLM",
    "SqueezeBertForMaskedLM",
    "T5ForConditionalGeneration",
    "ViTMAEForPreTraining",
    "Wav2Vec2ForSequenceClassification",
    "WhisperForConditionalGeneration",
    "XLMWithLMHeadModel",
    "XLNetForSequenceClassification",
]
METHODS = ["r3f", "lnsr", "jachess", "mixout", "label_smoothing"]


def results(name, methods):
    head, _ = classes()[name]
    return sweep_checks.check_class(getattr(transformers, name), head, methods)


def wrong(found):
    return {check: outcome for check, outcome in found.items() if outcome.startswith("wrong")}


@pytest.mark.parametrize("name", FAST)
def test_a_class_is_right_or_refused(name):
    found = results(name, ["r3f"])
    assert found["task loss"] == "right"
    assert wrong(found) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_classes_are_right_or_refused(name):
    found = results(name, METHODS)
    assert wrong(found) == {}
    assert "right" in found["task loss"]


def test_a_wrong_task_loss_is_noticed(monkeypatch):
    own = objective.model_loss

    def doubled(model, batch):
        loss, outputs = own(model, batch)
        return 2 * loss, outputs

    monkeypatch.setattr(objective, "model_loss", doubled)
    assert "task loss" in wrong(results("BertForSequenceClassification", []))


def test_a_wrong_perturbation_is_noticed(monkeypatch):
    own = hooks.Tap.pass_through

    def moved(self, x):
        return own(self, x) + (0 if self.delta is None else 0.1 * self.delta)

    monkeypatch.setattr(hooks.Tap, "pass_through", moved)
    assert wrong(results("BertForSequenceClassification", [])).keys() == {"perturbation"}


def test_a_wrong_kind_is_noticed(monkeypatch):
    monkeypatch.setattr(sweep_checks, "is_causal", lambda model: True)
    assert wrong(results("BertForSequenceClassification", [])).keys() == {"causality"}
