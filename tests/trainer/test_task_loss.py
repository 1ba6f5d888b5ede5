"""Every row and label weighs the same, however an update is cut; whose loss the task loss is."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    CLIPConfig,
    CLIPModel,
    Trainer,
    ViTMAEConfig,
    ViTMAEForPreTraining,
)

from helpers.causal import language_weights_after
from helpers.training import Rows, arguments, collate, weights_after
from smoothtune import L2SP, LNSR, R3F, VAT, Plain, SmoothTrainer, regularize
from smoothtune.testing import VOCABULARY, fixed_draws, tiny_model

CUT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}  # 4 + 4 + 2
DECLARES_SCALING = hasattr(Trainer, "loss_is_scaled_for_ga")


def difference(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


METHODS_CUT = ["plain", "lnsr", "l2_sp", "r3f", "freelb", "jacobian", "uegr", "cwgnc"]


def in_turn(methods, architectures):
    """Each method on one of the architectures, in turn; the rest are slow tests."""
    for (i, method), (j, name) in product(enumerate(methods), enumerate(architectures)):
        marks = () if i % len(architectures) == j else pytest.mark.slow
        yield pytest.param(method, name, marks=marks)


@pytest.mark.parametrize(("method", "architecture"), list(in_turn(METHODS_CUT, ["bert", "llama"])))
def test_unequal_batches_equal_one_big_batch(tmp_path, method, architecture):
    data = Rows(10)
    whole = weights_after(tmp_path, method, architecture, data=data)
    parts = weights_after(tmp_path, method, architecture, data=data, **CUT)
    assert difference(whole, tiny_model(architecture).state_dict()) > 1e-3
    assert difference(whole, parts) < 1e-6


@pytest.mark.parametrize("method", ["plain", "lnsr", "r3f", "freelb"])
def test_unequal_texts_of_a_language_model_equal_one_big_batch(tmp_path, method):
    """Batches of 3, 3 and 2 texts, each text with other label tokens."""
    whole = language_weights_after(tmp_path, method)
    parts = language_weights_after(
        tmp_path, method, per_device_train_batch_size=3, gradient_accumulation_steps=3
    )
    assert difference(whole, parts) < 1e-6


class LabeledTokens(Rows):
    """The first rows have more labels than the last ones; the last has none."""

    def __init__(self, count=10, num_labels=3):
        super().__init__(count)
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(0, num_labels, self.ids.shape, generator=generator)
        for i in range(count):
            self.labels[i, max(0, 6 - i) :] = -100


def token_model(cls):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=3,
    )  # fmt: skip
    return cls(config).to(torch.float64)


def moved(tmp_path, model, *, data=None, methods=(), cls=Trainer, functions=None, **changes):
    """Weights after one update of a trainer with methods."""
    trainer = cls(
        model=model,
        args=arguments(tmp_path, **changes),
        train_dataset=data or Rows(10),
        data_collator=collate,
        **(functions or {}),
    )
    with fixed_draws():
        regularize(trainer, *(methods or [Plain()])).train()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("cls", [BertForTokenClassification, BertForMaskedLM])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_unequal_labels_equal_one_big_batch(tmp_path, cls, smoothing):
    data, settings = LabeledTokens(), {"label_smoothing_factor": smoothing}
    whole, parts = (
        moved(
            tmp_path, token_model(cls), data=data, methods=[LNSR(weight=1.0)],
            **settings, **cut,
        )
        for cut in ({}, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4})
    )  # fmt: skip
    assert difference(whole, parts) < 1e-9


def test_the_reference_is_the_gradient_of_all_labels(tmp_path):
    """Not only the same however it is cut: the gradient of the mean over all labels."""
    data, model = LabeledTokens(), token_model(BertForTokenClassification)
    batch = collate([data[i] for i in range(10)])
    del batch["example_id"]
    model(**batch).loss.backward()
    expected = {n: p.detach() - 0.1 * p.grad for n, p in model.named_parameters()}
    again = token_model(BertForTokenClassification)
    assert difference(moved(tmp_path, again, data=data, **CUT), expected) < 1e-9


# --- losses of users -----------------------------------------------------------------------------


def cross_entropy(outputs, labels, **options):
    return nn.functional.cross_entropy(outputs.logits, labels, **options)


def ignoring(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs, labels, label_smoothing=0.3)


def normalizing(outputs, labels, num_items_in_batch):
    total = cross_entropy(outputs, labels, label_smoothing=0.3, reduction="sum")
    return total / num_items_in_batch


@pytest.mark.parametrize("function", [ignoring, normalizing])
def test_a_loss_function_is_exact_whether_it_uses_the_count_or_not(tmp_path, function):
    whole, parts = (
        moved(
            tmp_path, tiny_model("bert"), methods=[L2SP()],
            functions={"compute_loss_func": function}, **cut,
        )
        for cut in ({}, CUT)
    )  # fmt: skip
    assert difference(whole, parts) < 1e-9
    plain = moved(tmp_path, tiny_model("bert"), methods=[L2SP()])
    assert difference(whole, plain) > 1e-6


class Normalized(Trainer):
    """Divides by the labels of the whole update, and says so."""

    loss_is_scaled_for_ga = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # as BERT does since transformers 5: labels count

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = normalizing(outputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class NormalizedUndeclared(Normalized):
    """The same, as the Trainer takes it without being told."""

    loss_is_scaled_for_ga = None


@pytest.mark.parametrize("cls", [Normalized, NormalizedUndeclared])
def test_a_normalized_loss_makes_the_update_of_its_own_trainer(tmp_path, cls):
    model = tiny_model("bert")
    cls(
        model=model,
        args=arguments(tmp_path, **CUT),
        train_dataset=Rows(10),
        data_collator=plain_collate,
    ).train()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    ours = moved(tmp_path, tiny_model("bert"), cls=cls, **CUT)
    assert difference(ours, own) < 1e-9
    assert difference(ours, moved(tmp_path, tiny_model("bert"), cls=cls)) < 1e-9


@pytest.mark.parametrize("counts", [True, False])
def test_a_normalized_loss_that_would_get_no_count_is_refused(tmp_path, counts):
    """As that of BERT in transformers 4: it may fall back to a mean, which would be summed."""
    for cut, refused in ((CUT, not counts), ({}, False)):
        trainer = Normalized(model=tiny_model("bert"), args=arguments(tmp_path, **cut))
        trainer.model_accepts_loss_kwargs = counts
        message = "=3: the Trainer counts no num_items_in_batch for BertForSequenceClassification"
        with pytest.raises(ValueError, match=message) if refused else nullcontext():
            regularize(trainer, Plain())


def plain_collate(rows):
    return collate([{k: v for k, v in row.items() if k != "example_id"} for row in rows])


class PerBatch(Trainer):
    """A mean over the batch, weighed alike for every batch, as it declares."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = cross_entropy(outputs, labels, weight=torch.tensor([1.0, 5.0, 0.2]).double())
        return (loss, outputs) if return_outputs else loss


class WithoutCount(PerBatch):
    """As it was written for older versions of transformers."""

    loss_is_scaled_for_ga = None

    def compute_loss(self, model, inputs, return_outputs=False):
        return super().compute_loss(model, inputs, return_outputs)


def test_a_mean_of_unknown_meaning_weighs_the_same_for_every_batch(tmp_path):
    model = tiny_model("bert")
    for rows in (range(4), range(4, 8), range(8, 10)):
        batch = plain_collate([Rows(10)[i] for i in rows])
        (PerBatch.compute_loss(None, model, batch) / 3).backward()
    expected = {n: p.detach() - 0.1 * p.grad for n, p in model.named_parameters()}
    for cls in (PerBatch, WithoutCount):
        found = moved(tmp_path, tiny_model("bert"), cls=cls, **CUT)
        assert difference(found, expected) < 1e-9


def test_a_mean_that_is_declared_as_one_makes_the_update_of_its_own_trainer(tmp_path):
    model = tiny_model("bert")
    trainer = PerBatch(
        model=model,
        args=arguments(tmp_path, **CUT),
        train_dataset=Rows(10),
        data_collator=plain_collate,
    )
    if not DECLARES_SCALING:
        trainer.model_accepts_loss_kwargs = False  # what it is told in the place of the declaration
    trainer.train()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert difference(moved(tmp_path, tiny_model("bert"), cls=PerBatch, **CUT), own) < 1e-9


def test_a_loss_that_takes_no_count_is_evaluated_too(tmp_path):
    trainer = WithoutCount(
        model=tiny_model("bert"),
        args=arguments(tmp_path),
        eval_dataset=Rows(10),
        data_collator=plain_collate,
    )
    assert regularize(trainer, LNSR(weight=1.0)).evaluate()["eval_loss"] > 0


@pytest.mark.skipif(
    not hasattr(Trainer, "_get_num_items_in_batch"), reason="this Trainer evaluates without a count"
)
@pytest.mark.parametrize("cls", [Normalized, NormalizedUndeclared])
def test_a_normalized_loss_is_evaluated_with_a_count(tmp_path, cls):
    """Before training, and within it."""
    found = []
    for ours in (False, True):
        trainer = cls(
            model=tiny_model("bert"),
            args=arguments(tmp_path, eval_strategy="steps", eval_steps=1),
            train_dataset=Rows(10),
            eval_dataset=Rows(9, seed=1),
            data_collator=plain_collate,
        )
        if ours:
            regularize(trainer, Plain())
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        within = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        found.append((before, within))
    assert found[0] == found[1]


# --- losses without the usual labels -------------------------------------------------------------


class Targets(nn.Module):
    """A classifier whose labels have another name."""

    def __init__(self):
        super().__init__()
        self.bert = tiny_model("bert")

    def get_input_embeddings(self):
        return self.bert.get_input_embeddings()

    def forward(self, input_ids, attention_mask, targets=None):
        outputs = self.bert(input_ids, attention_mask)
        if targets is not None:
            outputs["loss"] = cross_entropy(outputs, targets)
        return outputs


def renamed(rows):
    batch = collate(rows)
    batch["targets"] = batch.pop("labels")
    return batch


@pytest.mark.parametrize("cut", [{}, CUT])
def test_labels_of_another_name(tmp_path, cut):
    model = Targets()
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, label_names=["targets"], **cut),
        train_dataset=Rows(10),
        data_collator=renamed,
    )
    batch = renamed([Rows(10)[i] for i in range(10)])
    del batch["example_id"]
    expected = model(**batch)["loss"].item()
    regularize(trainer, R3F(sigma=0.1, weight=1.0)).train()
    logs = trainer.state.log_history[0]
    assert logs["loss/task"] == pytest.approx(expected, rel=1e-5)
    assert "loss/r3f" in logs


class SelfSupervised(Trainer):
    """Needs no labels."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**{k: v for k, v in inputs.items() if k != "labels"})
        loss = 5 + outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def unlabeled_collate(rows):
    return collate([{k: v for k, v in row.items() if k != "labels"} for row in rows])


def test_a_loss_without_labels_is_the_task_loss(tmp_path):
    trainer = SelfSupervised(
        model=tiny_model("bert"),
        args=arguments(tmp_path),
        train_dataset=Rows(10),
        data_collator=unlabeled_collate,
    )
    regularize(trainer, LNSR(weight=1.0)).train()
    assert trainer.state.log_history[0]["loss/task"] > 5


@pytest.mark.parametrize("marked", [False, True])
def test_a_stock_loss_without_the_declared_labels_has_no_task_loss(tmp_path, caplog, marked):
    model = tiny_model("bert")
    model.config.problem_type = "single_label_classification"
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path),
        train_dataset=Rows(10),
        data_collator=lambda rows: (
            unlabeled_collate(rows) | ({"unlabeled": True} if marked else {})
        ),
    )
    regularize(trainer, LNSR(weight=1.0)).train()
    told = "Its batches hold input_ids, attention_mask, example_id, and the model takes labels."
    assert (told in caplog.text) != marked
    logs = trainer.state.log_history[0]
    assert "loss/task" not in logs
    assert logs["loss/lnsr"] > 0


def clip():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "projection_dim": 8}
    text = sizes | {"vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 2}
    vision = sizes | {"image_size": 8, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    rows = [
        {"input_ids": torch.tensor([3 + i, 4, 2]), "pixel_values": torch.randn(3, 8, 8)}
        for i in range(4)
    ]
    return model, rows, {"return_loss": True}


def masked_autoencoder():
    model = ViTMAEForPreTraining(
        ViTMAEConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            image_size=8, patch_size=4, decoder_num_attention_heads=2, decoder_hidden_size=8,
            decoder_num_hidden_layers=1, decoder_intermediate_size=16,
        )
    )  # fmt: skip
    return model, [{"pixel_values": torch.randn(3, 8, 8)} for _ in range(4)], {}


@pytest.mark.parametrize("make", [clip, masked_autoencoder])
def test_models_that_have_a_loss_without_labels(tmp_path, make):
    torch.manual_seed(0)
    model, rows, extra = make()
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path),
        train_dataset=rows,
        data_collator=lambda rows: collate(rows) | extra,
    )
    regularize(trainer, L2SP()).train()
    assert trainer.state.log_history[0]["loss/task"] > 0.1


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (([],), ValueError, r"Plain\(\)"),
        (("lnsr",), TypeError, r"'lnsr' is a name: write an instance"),
        ((LNSR,), TypeError, r"write LNSR\(\)"),
        ((3,), TypeError, "3 is no method"),
    ],
)
def test_what_is_no_method_is_refused(tmp_path, given, error, message):
    trainer = Trainer(model=tiny_model("bert"), args=arguments(tmp_path))
    with pytest.raises(error, match=message):
        regularize(trainer, *given)
    with pytest.raises(error, match=message):
        SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path),
            regularizers=given[0],
        )
    assert not hasattr(trainer, "objective")


def test_without_a_method_it_is_vat_and_says_so(tmp_path, caplog):
    for make in (lambda **given: regularize(Trainer(**given)), SmoothTrainer):
        caplog.clear()
        trainer = make(model=tiny_model("bert"), args=arguments(tmp_path))
        methods = trainer.objective.regularizers
        assert [type(method) for method in methods.values()] == [VAT]
        assert "VAT() is taken" in caplog.text
        assert "Plain() is plain fine-tuning" in caplog.text


def test_what_is_no_trainer_is_refused():
    with pytest.raises(TypeError, match="this BertFor.* is a model: pass a transformers.Trainer"):
        regularize(tiny_model("bert"), LNSR())
    with pytest.raises(TypeError, match="Trainer is a class: pass a transformers.Trainer"):
        regularize(Trainer, LNSR())
    with pytest.raises(TypeError, match="this list is no trainer"):
        regularize([], LNSR())


def test_two_methods_of_one_class_are_two_terms(tmp_path):
    trainer = Trainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=Rows(),
        data_collator=collate,
    )
    regularize(trainer, LNSR(weight=1.0), LNSR(weight=1.0, noise="in_manifold")).train()
    assert {"loss/lnsr", "loss/lnsr_2"} <= trainer.state.log_history[0].keys()


def test_lists_and_single_methods_are_accepted(tmp_path):
    args = arguments(tmp_path)
    trainer = Trainer(model=tiny_model("bert"), args=args)
    assert set(regularize(trainer, [LNSR(weight=1.0), L2SP()]).objective.regularizers) == {
        "lnsr",
        "l2_sp",
    }
    single = SmoothTrainer(model=tiny_model("bert"), args=args, regularizers=LNSR(weight=1.0))
    assert set(single.objective.regularizers) == {"lnsr"}
