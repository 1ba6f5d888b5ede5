"""What a batch counts for in its update."""

import pytest
import torch

from smoothtune import L2SP, LNSR, Objective
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model
from smoothtune.trainer.update_batches import are_labels, counted_labels, rows_of

IDS = torch.ones(3, 4, dtype=torch.long)


def test_rows_are_examples():
    assert rows_of({"weight": torch.tensor(1.0), "x": torch.ones(5, 2), "input_ids": IDS}) == 3
    assert rows_of({"weight": torch.tensor(1.0), "pixel_values": torch.ones(5, 2)}) == 5
    assert rows_of({"input_ids": torch.ones(2, 4, 7)}) == 2  # four choices each


@pytest.mark.parametrize(
    ("labels", "names", "shifted", "expected"),
    [
        (torch.tensor([0, 2, 1]), ["labels"], False, 3),
        (torch.tensor([0, -100, 1]), ["labels"], False, 2),
        (torch.tensor([0.5, 1.5, -100.0]), ["labels"], False, None),
        (torch.tensor([[1, -100], [2, 3], [-100, -100]]), ["labels"], False, 3),
        (torch.tensor([[1, -100], [2, 3], [-100, -100]]), ["labels"], True, 1),
        (torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), ["labels"], False, None),
        (torch.tensor([0, -100, 1]), ["labels", "input_ids"], False, None),  # two kinds of labels
        (torch.tensor([0, -100, 1]), [], False, None),
        ([{"boxes": 1}, {"boxes": 2}, {"boxes": 3}], ["labels"], False, None),
    ],
)
def test_labels_are_those_that_count_in_the_mean(labels, names, shifted, expected):
    """None: the mean is over rows."""
    name = counted_labels({"input_ids": IDS, "labels": labels}, names)
    assert (name and int(are_labels(labels, shifted=shifted).sum())) == expected


def test_row_share_in_a_plain_loop_gives_the_gradient_of_all_rows():
    batch, gradients = tiny_batch(), []
    for cuts in ([slice(0, 4)], [slice(0, 3), slice(3, 4)]):
        model = tiny_model("bert")
        objective = Objective(LNSR(reduction="token_sum", weight=1.0), L2SP(beta=1.0)).attach(model)
        with fixed_draws():
            for rows in cuts:
                part = {name: x[rows] for name, x in batch.items()}
                share = rows_of(part) * len(cuts) / 4
                (objective(model, part, row_share=share) / len(cuts)).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
