"""Several documents in a row, which methods take for one example each."""

import pytest
import torch

from helpers.causal import tiny_language_model
from smoothtune import L2SP, METHODS, Objective
from smoothtune.core.compute_loss import model_loss
from smoothtune.core.packed_rows import unpacked
from smoothtune.testing import fixed_draws, tiny_model, with_weight

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 2, 3]])


def packed(rows):
    ids, positions = IDS[:rows], POSITIONS[:rows]
    labels = ids.masked_fill(positions == 0, -100)
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def apart(rows):
    """The same documents in rows, by hand."""
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0], [11, 12, 0, 0], [13, 14, 15, 16]])[: 2 * rows]
    mask = (ids != 0).long()
    labels = ids.masked_fill(ids == 0, -100)
    labels[:, 0] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["fgm", "jachess", "lnsr", "vat", "freelb", "r_drop"])
def test_a_loop_gives_the_terms_of_separate_documents(name, rows):
    values = []
    for batch in (packed(rows), apart(rows)):
        model = tiny_language_model("llama")
        objective = Objective(with_weight(METHODS[name]())).attach(model)
        with fixed_draws():
            objective(model, batch)
        values.append({key: value.item() for key, value in objective.terms.items()})
        objective.detach()
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_what_cannot_be_taken_apart_is_refused_where_terms_are_per_example():
    model = tiny_language_model("llama")
    with pytest.raises(ValueError, match="fgm with packed rows.*give every document a row"):
        Objective(METHODS["fgm"]())(model, packed(2), lambda model, batch: model_loss(model, batch))
    classifier = tiny_model("llama")
    batch = packed(2) | {"labels": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match="vat with packed rows"):
        Objective(METHODS["vat"](weight=1.0)).attach(classifier)(classifier, batch)
    total = Objective(L2SP()).attach(model)(model, packed(2), model_loss)
    assert total.item() == pytest.approx(model(**packed(2)).loss.item())


def test_a_row_of_one_document_is_not_packed():
    model = tiny_language_model("llama")
    batch = {name: value[:1, :4] for name, value in packed(1).items()}
    assert Objective(METHODS["fgm"]())(model, batch, model_loss).requires_grad


def test_unpacked_documents():
    packed = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
        "labels": torch.tensor([[-100, 6, 7, -100, 9]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
        "cu_seq_lens_q": torch.tensor([0, 3, 5]),
    }
    found = unpacked(packed)
    assert set(found) == {"input_ids", "attention_mask", "labels"}
    assert found["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert found["labels"].tolist() == [[-100, 6, 7], [-100, 9, -100]]
    padded = {"input_ids": packed["input_ids"], "attention_mask": torch.ones(1, 5)}
    assert unpacked(padded) == padded


@pytest.mark.parametrize(
    "positions",
    [
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],  # rows, not documents in one row
        [[4, 5, 6, 7, 8]],  # from another start
        [[0, 2, 4, 0, 2]],  # in other steps
        [[1, 2, 0, 1, 2]],
    ],
)
def test_position_ids_of_the_users_own_are_kept(positions):
    ids = torch.tensor(positions)
    batch = {"input_ids": ids + 5, "labels": ids + 5, "position_ids": ids}
    assert unpacked(batch) == batch
