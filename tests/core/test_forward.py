"""Perturbed passes: where delta enters, what is shared, what is refused."""

import pytest
import torch
from torch import nn
from transformers import LongformerConfig, LongformerForSequenceClassification

from smoothtune import SMART, ForwardPass, HyPe, Noise, Objective
from smoothtune.nn.architecture import blocks
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_zero_delta_gives_exactly_the_clean_logits(architecture, left):
    model = tiny_model(architecture)
    batch = tiny_batch(padding=2, left=left)
    expected = model(**batch).logits
    run = ForwardPass(model, batch)
    for point in ("word", 0, 1):
        assert torch.equal(run.at(run.zeros(point), point).logits, expected)
    assert torch.equal(ForwardPass(model, batch, differentiable=True).run().logits, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_states_are_those_of_transformers(architecture):
    model, batch = tiny_model(architecture), tiny_batch()
    expected = model(**batch, output_hidden_states=True).hidden_states
    found = ForwardPass(model, batch).run().hidden_states
    assert len(found) == len(expected) == 3
    for a, b in zip(found[:-1], expected[:-1], strict=True):
        assert torch.equal(a, b)
    # the last one is the block's own output; some models return it after a final norm
    last = model(**batch, output_hidden_states=True)
    assert found[-1].shape == last.hidden_states[-1].shape


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_delta_moves_the_input_and_only_that(architecture):
    model, batch = tiny_model(architecture), tiny_batch()
    table = model.get_input_embeddings().weight
    delta = torch.zeros(4, 6, 8, dtype=torch.float64)
    delta[0, 2] = table[17].detach() - table[batch["input_ids"][0, 2]].detach()
    swapped = {**batch, "input_ids": batch["input_ids"].clone()}
    swapped["input_ids"][0, 2] = 17
    found = ForwardPass(model, batch).at(delta).logits
    torch.testing.assert_close(found, model(**swapped).logits)


def test_gradient_with_respect_to_the_leaf_works_for_frozen_embeddings():
    model, batch = tiny_model("bert"), tiny_batch()
    model.get_input_embeddings().weight.requires_grad_(False)
    run = ForwardPass(model, batch, differentiable=True).run()
    (found,) = torch.autograd.grad(run.loss, run.delta())
    h = 1e-6
    for index in [(0, 1, 3), (3, 2, 0)]:
        values = []
        for sign in (1, -1):
            delta = run.zeros()
            delta[index] = sign * h
            values.append(run.at(delta).loss.item())
        slope = (values[0] - values[1]) / (2 * h)
        assert found[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_dropout_masks_are_shared_fresh_or_off():
    model, batch = tiny_model("bert", dropout=0.4), tiny_batch()
    run = ForwardPass(model, batch).run()
    clean = run.logits
    assert torch.equal(run.at(dropout="shared").logits, clean)
    assert not torch.equal(run.at(dropout="independent").logits, clean)
    off = run.at(dropout="off").logits
    assert torch.equal(off, model.eval()(**batch).logits)
    assert torch.equal(run.at(dropout="off").logits, off)


def test_embeddings_are_found_without_a_whole_forward():
    model, batch = tiny_model("bert", dropout=0.4), tiny_batch()
    calls = []
    model.classifier.register_forward_hook(lambda *_: calls.append(1))
    run = ForwardPass(model, batch)
    early = run.embeddings(1)
    assert not calls
    run.run()  # with the same dropout masks
    assert torch.equal(early, run.hidden_states[1])


def test_outputs_of_a_pass_that_has_not_run_are_refused():
    clean = ForwardPass(tiny_model("bert"), tiny_batch())
    state = torch.get_rng_state()
    for name in ("loss", "outputs", "logits", "hidden_states"):
        with pytest.raises(RuntimeError, match="call `run"):
            getattr(clean, name)
    assert torch.equal(torch.get_rng_state(), state)
    assert not clean.has_run
    assert clean.run() is clean
    assert clean.loss is clean.run().loss  # the forward is computed once


def test_pooled_reads_what_the_head_reads():
    for left in (False, True):
        model, batch = tiny_model("opt"), tiny_batch(left=left, padding=1)
        run = ForwardPass(model, batch).run()
        hidden = model.model(batch["input_ids"], batch["attention_mask"])[0]
        torch.testing.assert_close(model.score(run.pooled(hidden)), run.logits)


def test_modes_come_back_after_an_exception():
    model, batch = tiny_model("bert"), tiny_batch()
    model.bert.pooler.eval()
    model.classifier.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ForwardPass(model, batch).at(dropout="off")
    assert model.training
    assert not model.bert.pooler.training
    assert not model.get_input_embeddings()._forward_hooks


class TwoTables(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(3, 2), nn.Embedding(3, 2)


def test_what_cannot_be_perturbed_is_refused():
    batch = tiny_batch()
    with pytest.raises(ValueError, match="get_input_embeddings"):
        ForwardPass(TwoTables(), batch, hidden_states=False).run()
    with pytest.raises(ValueError, match="there is no block 5"):
        ForwardPass(tiny_model("bert"), batch).at(torch.zeros(1), 5)
    with pytest.raises(ValueError, match="cannot be reached"):
        blocks(nn.Linear(2, 2))
    model = tiny_model("bert")
    embeds = model.get_input_embeddings()(batch["input_ids"])

    def through_embeds(model, inputs):
        return None, model(inputs_embeds=embeds)

    with pytest.raises(RuntimeError, match="never passed"):
        ForwardPass(model, batch, compute_loss=through_embeds).run()

    with pytest.raises(RuntimeError, match="does not fit"):
        ForwardPass(model, batch).at(torch.zeros(6, 4, 8))

    def twice(model, inputs):
        model(**inputs)
        return None, model(**inputs)

    with pytest.raises(RuntimeError, match="passed twice"):
        ForwardPass(model, batch, compute_loss=twice).run()


def test_hidden_states_that_were_not_asked_for():
    run = ForwardPass(tiny_model("bert"), tiny_batch(), hidden_states=False).run()
    with pytest.raises(RuntimeError, match="hidden states were not recorded"):
        _ = run.hidden_states


def test_leaves_that_were_not_asked_for():
    run = ForwardPass(tiny_model("bert"), tiny_batch()).run()
    with pytest.raises(RuntimeError, match="no perturbation at point 'word'"):
        run.delta()
    run = ForwardPass(tiny_model("bert"), tiny_batch(), differentiable=True).run()
    assert run.delta().requires_grad


@pytest.mark.parametrize("name", ["labels", "start_positions", "end_positions", None])
def test_a_batch_with_targets_is_labeled(name):
    batch = {"input_ids": torch.zeros(1, 2)} | ({name: torch.zeros(1)} if name else {})
    assert ForwardPass(tiny_model("bert"), batch).labeled == (name is not None)


@pytest.mark.parametrize(("left", "first"), [(False, [0, 0, 0, 0]), (True, [1, 3, 2, 4])])
def test_pooled_in_an_encoder_is_the_first_real_token(left, first):
    run = ForwardPass(tiny_model("bert"), tiny_batch(left=left, padding=1))
    positions = torch.arange(7.0).expand(4, 7)[..., None]
    assert run.pooled(positions).flatten().tolist() == first


def test_without_a_mask_every_token_is_real():
    batch = {"input_ids": torch.zeros(2, 3, dtype=torch.long)}
    assert ForwardPass(tiny_model("bert"), batch).mask.tolist() == [[True] * 3] * 2


def test_embeddings_of_a_pass_that_has_run_cost_no_forward():
    model, batch = tiny_model("bert"), tiny_batch()
    run = ForwardPass(model, batch, points=("word", 1)).run()
    calls = []
    model.get_input_embeddings().register_forward_hook(lambda *_: calls.append(1))
    found = run.embeddings("word"), run.embeddings(1)
    assert not calls
    assert torch.equal(found[0], model.get_input_embeddings()(batch["input_ids"]))
    assert torch.equal(found[1], run.hidden_states[1])
    assert not any(value.requires_grad for value in found)


def lookups(value, table):
    """How many times the graph of a value looks words up."""
    seen, waiting, found = set(), [value.grad_fn], 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        below = [function for function, _ in node.next_functions]
        if node.name().startswith("EmbeddingBackward"):
            found += getattr(below[0], "variable", None) is table
        waiting += below
    return found


@pytest.mark.parametrize(
    ("point", "options", "expected"),
    [
        ("word", {"dropout": "independent"}, 1),  # no dropout acts below
        ("word", {"dropout": "off"}, 1),
        (1, {"dropout": "shared"}, 1),
        (1, {"dropout": "independent"}, 2),
        (1, {"dropout": "off"}, 2),
        (1, {"dropout": "shared", "rate": 0.5}, 2),
        (None, {"dropout": "shared"}, 2),
    ],
)
def test_what_lies_below_a_perturbation_is_computed_once(point, options, expected):
    model, batch = tiny_model("bert", dropout=0.4), tiny_batch()
    clean = ForwardPass(model, batch, points=("word", 1)).run()
    delta = (clean.zeros(point), point) if point is not None else ()
    moved = clean.at(*delta, **options)
    table = model.get_input_embeddings().weight
    assert lookups(clean.loss + moved.loss, table) == expected
    another = moved.at(clean.zeros("word"))  # only a clean pass is built upon
    assert lookups(moved.loss + another.loss, table) == 2


def test_another_model_computes_all_of_its_own():
    model, other = tiny_model("bert"), tiny_model("bert")
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(2)
    clean = ForwardPass(model, tiny_batch()).run()
    found = clean.at(clean.zeros(), model=other).logits
    assert torch.equal(found, other(**tiny_batch()).logits)
    assert not torch.allclose(found, clean.logits)


@pytest.mark.parametrize("dropout", ["shared", "independent"])
def test_a_clean_pass_that_never_runs_ends_where_its_twin_ended(dropout):
    model, batch = tiny_model("bert", dropout=0.4), tiny_batch()
    torch.manual_seed(5)
    model(**batch)
    expected = torch.get_rng_state()
    torch.manual_seed(5)
    clean = ForwardPass(model, batch)
    clean.at(dropout=dropout)
    if dropout == "independent":
        assert clean.end is None
    else:
        assert torch.equal(clean.end[0], expected)


@pytest.mark.parametrize("method", [SMART(weight=1.0), HyPe(), Noise()], ids=lambda m: m.name)
def test_a_model_that_lengthens_its_input_is_refused(method):
    """Longformer pads to its window, so its activations are no values of the batch's tokens."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LongformerConfig(
        **sizes, vocab_size=40, intermediate_size=8, attention_window=[8], num_labels=3
    )
    model = LongformerForSequenceClassification(config).double().train()
    objective = Objective(method).attach(model)
    with pytest.raises(
        RuntimeError, match=r"\(4, 8, 8\).* does not fit a batch of \(4, 6\) tokens"
    ):
        objective(model, tiny_batch())
    objective.detach()
