"""Every method on inputs (B, choices, T): it keeps the contract, or is refused."""

import pytest
import torch
from transformers import BertForMultipleChoice

from smoothtune import LNSR, METHODS, R3F, ForwardPass, Objective
from smoothtune.functional.divergences import symmetric_kl
from smoothtune.nn import rng
from smoothtune.testing import ARCHITECTURES, PAD, VOCABULARY, contract, fixed
from smoothtune.testing.contract import Models
from smoothtune.testing.tiny import random_model

CHOICES = 3
REFUSED = {"cross_holder", "double_backprop", "jachess", "jacobian"}
CLAUSES = (
    contract.reaches_parameters,
    contract.ignores_padding,
    contract.is_mean_over_examples,
)


def choice_model(architecture="bert", *, dropout=0.0):
    return random_model(BertForMultipleChoice, ARCHITECTURES[architecture](), dropout)


def choice_batch(*, padding=0, left=False, rows=slice(None)):
    assert not left
    """Four examples with three choices of 2 to 6 tokens, padded to 6 + `padding`."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 6, (4 * CHOICES,), generator=generator)
    lengths[0] = 6
    ids = torch.full((4 * CHOICES, 6 + padding), PAD)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, VOCABULARY, (int(length),), generator=generator)
    mask = torch.arange(6 + padding) < lengths[:, None]
    batch = {
        "input_ids": ids.view(4, CHOICES, -1),
        "attention_mask": mask.long().view(4, CHOICES, -1),
        "labels": torch.tensor([0, 2, 1, 0]),
    }
    return {name: tensor[rows] for name, tensor in batch.items()}


@pytest.mark.parametrize(
    ("name", "clause"),
    [  # fast: every method's mean, and one of the other clauses in turn
        pytest.param(
            name,
            clause,
            marks=pytest.mark.slow if j < 2 and i % 2 == j else (),
            id=f"{name}-{clause.__name__}",
        )
        for i, name in enumerate(sorted(set(METHODS) - REFUSED))
        for j, clause in enumerate(CLAUSES)
    ],
)
def test_contract(name, clause):
    clause(METHODS[name], "bert", Models(choice_model, choice_batch))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_right_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} takes .* multiple choice has several"):
        Objective(METHODS[name]()).attach(choice_model())


def test_a_pass_sees_every_sequence():
    model, batch = choice_model(), choice_batch()
    clean = ForwardPass(model, batch).run()
    flat = batch["input_ids"].view(4 * CHOICES, -1)
    states = model.bert(flat, batch["attention_mask"].view_as(flat), output_hidden_states=True)
    torch.testing.assert_close(clean.hidden_states, states.hidden_states)
    torch.testing.assert_close(
        clean.pooled(clean.hidden_states[-1]), states.hidden_states[-1][:, 0]
    )
    assert torch.equal(clean.input_ids, flat)
    assert torch.equal(clean.mask, batch["attention_mask"].view_as(flat).bool())
    assert clean.zeros().shape == (*flat.shape, 8)


def test_a_perturbation_moves_its_own_choice_alone():
    model, batch = choice_model(), choice_batch()
    clean = ForwardPass(model, batch).run()
    delta = clean.zeros()
    delta[CHOICES + 1, 0, 0] = 0.5  # choice 1 of example 1
    moved = (clean.at(delta).logits - clean.logits).abs() > 1e-9
    assert moved.nonzero().tolist() == [[1, 1]]


def test_r3f_compares_the_distributions_over_choices(monkeypatch):
    """R3F by hand: KL both ways between softmax over the choices, the mean over examples."""
    model, batch = choice_model(), choice_batch()
    draws = torch.rand(4 * CHOICES, 6, 8, dtype=torch.float64)
    monkeypatch.setattr(rng, "uniform_like", lambda x: 2 * draws - 1)
    method = R3F(noise="uniform", sigma=0.05, weight=1.0)
    objective = Objective(method).attach(model)
    objective(model, batch)
    clean = model(**batch)
    flat = batch["input_ids"].view(4 * CHOICES, -1)
    mask = batch["attention_mask"].view_as(flat)
    noise = 0.05 * (2 * draws - 1) * mask[..., None]
    hook = model.bert.embeddings.word_embeddings.register_forward_hook(lambda *x: x[2] + noise)
    noisy = model(**batch)
    hook.remove()
    p, q = clean.logits.log_softmax(1), noisy.logits.log_softmax(1)
    expected = ((p.exp() - q.exp()) * (p - q)).sum(1).mean()
    torch.testing.assert_close(expected, symmetric_kl(clean.logits, noisy.logits).mean())
    torch.testing.assert_close(objective.terms["loss/r3f"], method.weight * expected)


def test_lnsr_is_the_mean_over_all_sequences():
    """The same penalty as on the flattened batch of a plain encoder."""
    model, batch = choice_model(), choice_batch()
    flat = {name: batch[name].view(4 * CHOICES, -1) for name in ("input_ids", "attention_mask")}
    values = []
    with fixed.fixed_draws():
        for net, inputs in ((model, batch), (model.bert, flat)):
            objective = Objective(LNSR(batches="both", weight=1.0)).attach(net)
            objective(net, inputs | {"unlabeled": True})
            values.append(objective.terms["loss/lnsr"])
            objective.detach()
    torch.testing.assert_close(*values)
