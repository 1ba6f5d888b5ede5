import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smoothtune.core.terms
from smoothtune import L2SP, LNSR, R3F, Jacobian, Mixout, Objective, RDrop
from smoothtune.nn.dropout import SharedMasks
from smoothtune.testing import tiny_batch


def forward(x: Tensor) -> Tensor:
    """A dropout and attention, whose dropout is inside one function."""
    return F.scaled_dot_product_attention(F.dropout(x, 0.1), x, x, dropout_p=0.3)


def run(x: Tensor, masks: SharedMasks, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    with masks:
        return forward(x)


def plain(x: Tensor, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return forward(x)


def inputs() -> Tensor:
    return torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)


def count(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the masks that are really drawn from now on."""
    drawn: list[torch.Size] = []
    real = Tensor.bernoulli_

    def spy(tensor: Tensor, p: float) -> Tensor:
        drawn.append(tensor.shape)
        return real(tensor, p)

    monkeypatch.setattr(Tensor, "bernoulli_", spy)
    return drawn


def test_masks_are_drawn_once_and_are_those_that_would_have_been_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, masks = inputs(), SharedMasks()
    expected = plain(x)
    end = torch.get_rng_state()
    drawn = count(monkeypatch)
    alive = []
    for _ in range(3):
        alive.append(run(x, masks))
        assert torch.equal(alive[-1], expected)
        assert torch.equal(torch.get_rng_state(), end)
        assert len(drawn) == 2
    alive.clear()  # nothing is kept that no graph needs
    assert torch.equal(run(x, masks), expected)
    assert len(drawn) == 4


def test_only_a_cpu_looks_for_masks() -> None:
    objective, batch = Objective(LNSR(weight=1.0)), tiny_batch()
    assert objective._terms.shared_masks(batch) is not None
    elsewhere = {name: value.to("meta") for name, value in batch.items()}
    assert objective._terms.shared_masks(elsewhere) is None


@pytest.mark.parametrize(
    "method", [Mixout(), L2SP(), RDrop(), Jacobian(), R3F(weight=1.0, dropout="independent")]
)
def test_nobody_looks_for_masks_that_no_pass_shares(method) -> None:
    assert Objective(method)._terms.shared_masks(tiny_batch()) is None


def test_a_small_batch_draws_its_masks_again(monkeypatch) -> None:
    monkeypatch.setattr(smoothtune.core.terms, "MASKS_FROM", 25)
    batch = tiny_batch()  # of 24 tokens
    assert Objective(LNSR(weight=1.0))._terms.shared_masks(batch) is None
    assert Objective(LNSR(weight=1.0, rows=0.5))._terms.shared_masks(batch) is not None


def test_gradients_of_all_passes_are_right() -> None:
    x, masks = inputs(), SharedMasks()
    first, second = run(x, masks), run(2 * x, masks)
    (found,) = torch.autograd.grad((first * second).sum(), x)
    (expected,) = torch.autograd.grad((plain(x) * plain(2 * x)).sum(), x)
    torch.testing.assert_close(found, expected)


def test_another_state_shape_type_or_rate_is_another_draw() -> None:
    x, masks = inputs(), SharedMasks()
    run(x, masks)
    assert torch.equal(run(x, masks, seed=2), plain(x, seed=2))
    assert torch.equal(run(x[:1], masks), plain(x[:1]))
    assert torch.equal(run(x.double(), masks), plain(x.double()))
    torch.manual_seed(1)
    with masks:
        found = F.dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(x, 0.5))


def test_bernoulli_that_is_no_dropout_is_left_alone() -> None:
    def scaled_late(x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(0.9)
        return x * mask.mul_(2).div_(0.9)

    def not_scaled(x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(0.9)
        return x * mask + mask.sum()

    def scaled_otherwise(x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(0.9)
        return x * torch.ops.aten.div_.Scalar(mask, 0.5)

    x, masks = inputs(), SharedMasks()
    torch.manual_seed(1)
    with masks:
        kept = F.dropout(x, 0.1)  # its graph keeps the mask that the others find
    for function in (scaled_late, not_scaled, scaled_otherwise, scaled_late, not_scaled):
        torch.manual_seed(1)
        expected = function(x)
        torch.manual_seed(1)
        with masks:
            found = function(x)
        torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(kept.sum(), x)
    assert set(gradient.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}


def test_a_multiplication_by_the_rate_makes_no_dropout_mask() -> None:
    x, masks = inputs(), SharedMasks()
    torch.manual_seed(1)
    with masks:
        kept = torch.empty_like(x).bernoulli_(0.9)
        kept.mul_(0.9)
    torch.manual_seed(1)
    with masks:
        found = F.dropout(x, 0.1)
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(x, 0.1))
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(0.9).item()}


def draw_one_number(x: Tensor) -> None:
    torch.rand(())  # layerdrop


def draw_numbers(x: Tensor) -> None:
    torch.rand(2)


def draw_unscaled(x: Tensor) -> None:
    torch.empty_like(x).bernoulli_(0.9)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [(forward, True), (draw_one_number, True), (draw_numbers, False), (draw_unscaled, False)],
)
def test_draws_are_by_row_where_all_are_masks(draw, expected) -> None:
    x, masks = inputs(), SharedMasks()
    with masks:
        F.dropout(x, 0.1)
        draw(x)
    assert masks.are_by_row(2) == expected
    assert not masks.are_by_row(3)


@pytest.mark.parametrize("lost", ["kept", "changed", "gone"])
def test_some_rows_have_their_rows_of_a_mask_or_draw_it_again(lost) -> None:
    x, masks = inputs(), SharedMasks()
    rows = torch.tensor([1])

    def mask(x: Tensor) -> Tensor:
        return torch.ops.aten.div_.Scalar(torch.empty_like(x).bernoulli_(0.9), 0.9)

    torch.manual_seed(1)
    expected = mask(x)
    torch.manual_seed(1)
    with masks:
        alive = [mask(x)]
    if lost == "changed":
        alive[0].zero_()
    if lost == "gone":
        alive.clear()
    torch.manual_seed(1)
    with masks.of_rows(rows):
        found = mask(x[rows])
    assert torch.equal(found, expected[rows])


def test_a_mask_that_is_found_takes_no_memory_of_its_own() -> None:
    x, masks = inputs(), SharedMasks()
    saved: list[set[int]] = []
    alive = []
    for _ in range(2):
        places: set[int] = set()

        def keep(tensor: Tensor, places: set[int] = places) -> Tensor:
            places.add(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), masks:
            torch.manual_seed(1)
            alive.append(F.dropout(x, 0.1))
        saved.append(places)
    assert saved[0] == saved[1]


def test_other_operations_keep_their_options() -> None:
    with SharedMasks():
        assert torch.zeros(3, dtype=torch.float64).dtype == torch.float64
        assert torch.ones_like(torch.zeros(3), dtype=torch.int32).dtype == torch.int32
