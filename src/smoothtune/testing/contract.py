"""What holds for every method on every architecture: one function for each clause.

A clause takes what makes the method, the name of an architecture, and on request other `Models`
than the tiny ones.
"""

from collections.abc import Callable, Container
from itertools import combinations
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

from smoothtune.core import row_subset
from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer
from smoothtune.core.support import REFUSED
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing.fixed import all_in_float64, fixed_draws, frozen_perturbations
from smoothtune.testing.tiny import LEFT_PADDED, tiny_batch, tiny_model

MakeMethod = Callable[[], Regularizer]


class Models(NamedTuple):
    """What a clause is tried on; `tiny_model` and `tiny_batch` show what the functions return."""

    make_model: Callable[..., nn.Module] = tiny_model
    """(architecture, dropout=...) -> a model."""
    make_batch: Callable[..., dict[str, Tensor]] = tiny_batch
    """(padding=..., left=..., rows=...) -> its inputs."""
    left_padded: Container[str] = LEFT_PADDED
    """Architectures that are themselves indifferent to padding on the left."""


TINY = Models()


def with_weight(method: Regularizer) -> Regularizer:
    """The method with weight 1 in place of a share, so that its value has its gradient."""
    if not isinstance(method, Penalty) or method.share is None:
        return method
    left_out = ("share", "max_share")
    settings = {key: value for key, value in method.settings().items() if key not in left_out}
    return type(method)(**settings, weight=1.0)


def reaches_parameters(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """The gradient is finite, and a loss term has its part in it."""
    gradients = []
    for regularizers in [(), (with_weight(make()),)]:
        model = on.make_model(architecture, dropout=0.2)
        torch.manual_seed(3)
        gradients.append(_gradient(Objective(*regularizers), model, on.make_batch(), raw=True))
        assert torch.isfinite(gradients[-1]).all(), "the gradient is not finite"
        assert gradients[-1].any(), "the gradient is zero"
    same = isinstance(make(), LossTerm) and torch.equal(*gradients)
    assert not same, "the loss changes no gradient"


def off_at_weight_zero(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """Weight 0 is plain fine-tuning bit for bit, dropout and later draws included."""
    method = with_weight(make())
    if not isinstance(method, Penalty):
        return
    settings = method.settings() | {"weight": 0.0}
    results = []
    for regularizers in [(), (type(method)(**settings),)]:
        model = on.make_model(architecture, dropout=0.2)
        torch.manual_seed(3)
        gradient = _gradient(Objective(*regularizers), model, on.make_batch())
        results.append((gradient, torch.rand(1)))
    assert torch.equal(results[0][0], results[1][0]), "weight 0 changes the gradient"
    assert torch.equal(results[0][1], results[1][1]), "weight 0 draws from torch's generator"


def leaves_ambient_draws(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """A step leaves the global generators where plain fine-tuning leaves them.

    A method that draws in every forward moves them by what one forward draws, and no further.
    """
    after = []
    for acts in (False, True):
        model, method = on.make_model(architecture, dropout=0.2), with_weight(make())
        objective = Objective(method)
        if acts or method.traits.random_weights:
            objective.attach(model)
        torch.manual_seed(3)
        (objective if acts else Objective())(model, on.make_batch())
        after.append(torch.rand(1))
        objective.detach()
    assert torch.equal(*after), "draws from torch's generator: use smoothtune.nn.rng"


def ignores_padding(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """More padding changes neither value nor gradient; on the left, if the model allows it."""
    for left in (False, True) if architecture in on.left_padded else (False,):
        with fixed_draws(left=left), all_in_float64():
            values = [
                _gradient(
                    Objective(with_weight(make())),
                    on.make_model(architecture),
                    on.make_batch(padding=padding, left=left),
                )
                for padding in (0, 3)
            ]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)


def is_mean_over_examples(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """The gradient of a batch is the mean of its halves': exact under accumulation and DDP.

    What a method measures on its first batch is measured once, on the whole one. A method that
    ascends the loss of a whole batch is refused there.
    """
    if make().traits.ascends_weights:
        assert {"DDP", "FSDP2"} <= set(REFUSED["ascends in weights"])
        return
    with fixed_draws(), all_in_float64():
        model = on.make_model(architecture)
        objective = Objective(with_weight(make())).attach(model)
        objective(model, on.make_batch())
        state = objective.state_dict()
        whole, first, second = (
            _gradient(
                Objective(with_weight(make())),
                on.make_model(architecture),
                on.make_batch(rows=rows),
                raw=True,
                state=state,
            )
            for rows in (slice(None), slice(0, 2), slice(2, 4))
        )
    torch.testing.assert_close(whole, (first + second) / 2, rtol=1e-6, atol=1e-9)


def is_unbiased_on_a_part(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """The term's gradient is the mean over all pairs of the four rows, or rows=0.5 is refused.

    What a method measures on its first batch is measured once, on the whole one.
    """
    method = with_weight(make())
    halves = _on_half(method)
    if halves is None:
        return
    with fixed_draws(), all_in_float64():
        objective = Objective(method).attach(on.make_model(architecture))
        objective(objective.model, on.make_batch())
        state = objective.state_dict()

        def gradient(*regularizers: Regularizer, rows: tuple[int, ...] = ()) -> Tensor:
            with mock.patch.object(
                row_subset, "draw_rows", return_value=torch.tensor(rows)
            ) as drawn:
                objective, model = Objective(*regularizers), on.make_model(architecture)
                measured = state if regularizers else None
                flat = _gradient(objective, model, on.make_batch(), raw=True, state=measured)
            assert drawn.called == bool(rows), "rows below 1 must draw the rows, and rows=1 none"
            return flat

        plain, whole = gradient(), gradient(method)
        pairs = [gradient(halves, rows=rows) for rows in combinations(range(4), 2)]
    error = (torch.stack(pairs).mean(0) - whole).norm()
    allowed = 1e-6 if method.traits.finite_differences else 1e-9
    bound = allowed * (whole - plain).norm() + 1e-14 * plain.norm()
    assert error < bound, "the mean over parts of a batch is not the gradient of the whole"


def _on_half(method: Regularizer) -> Regularizer | None:
    """The method with rows=0.5; None if it says that its term is on all rows."""
    if not isinstance(method, Penalty) or method.why_all_rows():
        return None
    try:
        return type(method)(**method.settings() | {"rows": 0.5})
    except ValueError as error:
        if "so rows is 1" not in str(error):
            raise
        return None


def has_right_gradient(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """The parameter gradient equals central finite differences in float64."""
    model = on.make_model(architecture)
    objective = Objective(with_weight(make())).attach(model)
    batch = on.make_batch()
    recorded: list[Any] = []
    weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    torch.manual_seed(5)
    direction = [torch.randn_like(p) for p in weights]
    with fixed_draws(), all_in_float64():
        with frozen_perturbations(recorded, replay=False):
            gradients = torch.autograd.grad(objective(model, batch), weights, allow_unused=True)
        slope = sum(
            (g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None
        )
        values, h = [], 1e-6
        for sign in (1, -1):
            with torch.no_grad():
                for weight, d in zip(weights, direction, strict=True):
                    weight.add_(sign * h * d)
            with frozen_perturbations(recorded, replay=True):
                values.append(objective(model, batch).item())
            with torch.no_grad():
                for weight, d in zip(weights, direction, strict=True):
                    weight.sub_(sign * h * d)
    expected = torch.tensor((values[0] - values[1]) / (2 * h), dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(slope), expected, rtol=1e-5, atol=1e-7)


def leaves_no_trace(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """`loss` touches no gradient and no mode; `detach` leaves modules, hooks and keys as found."""
    model = on.make_model(architecture, dropout=0.1)
    before = _fingerprint(model)
    objective = Objective(with_weight(make())).attach(model)
    attached = _fingerprint(model)
    with all_in_float64():
        predictions = _predict(model, on.make_batch())
    objective(model, on.make_batch())
    assert _fingerprint(model) == attached, "loss changes modules, hooks or modes"
    assert all(p.grad is None for p in model.parameters()), "loss writes gradients"
    objective.detach()
    assert _fingerprint(model) == before, "detach leaves something in the model"
    with all_in_float64():  # while attached, attention may be another implementation
        again = _predict(model, on.make_batch())
    torch.testing.assert_close(again, predictions, rtol=1e-9, atol=1e-12)


def resumes(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """State round trip: the step after loading equals the step of the uninterrupted run."""
    model = on.make_model(architecture, dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(make()).bind(model, optimizer)
    _step(objective, model, optimizer, on.make_batch())
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state = {key: value.clone() for key, value in objective.state_dict().items()}
    _step(objective, model, optimizer, on.make_batch())
    expected = {key: value.clone() for key, value in model.state_dict().items()}

    other = on.make_model(architecture, dropout=0.1)
    with torch.no_grad():  # a process that did not start from the pre-trained weights
        for parameter in other.parameters():
            parameter.add_(0.01)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    resumed = Objective(make()).bind(other, other_optimizer)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    _step(resumed, other, other_optimizer, on.make_batch())
    for key, value in other.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12)


def survives_checkpointing(make: MakeMethod, architecture: str, on: Models = TINY) -> None:
    """Non-reentrant gradient checkpointing changes nothing, or is refused by name."""
    gradients = []
    for checkpointing in (False, True):
        model = on.make_model(architecture, dropout=0.1)
        if checkpointing:
            enable_checkpointing(model)
        torch.manual_seed(7)
        try:
            gradients.append(_gradient(Objective(with_weight(make())), model, on.make_batch()))
        except ValueError as error:
            if not checkpointing or "activation checkpointing" not in str(error):
                raise
            return
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-10)


CLAUSES = [
    reaches_parameters,
    off_at_weight_zero,
    leaves_ambient_draws,
    ignores_padding,
    is_mean_over_examples,
    is_unbiased_on_a_part,
    has_right_gradient,
    leaves_no_trace,
    resumes,
    survives_checkpointing,
]


def _gradient(
    objective: Objective,
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    raw: bool = False,
    state: Any = None,
) -> Tensor:
    """All parameter gradients of one step, flat: as the optimizer sees them, or before edits."""
    objective.attach(model)
    if state is not None:
        objective.load_state_dict(state)
    objective(model, batch).backward()
    if not raw:
        objective.before_step()
    flat = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    objective.detach()
    return torch.cat(flat)


def _step(
    objective: Objective,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Tensor],
) -> None:
    torch.manual_seed(11)
    objective(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def _predict(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    model.eval()
    logits = model(**batch)["logits"]
    model.train()
    return logits


def _fingerprint(model: nn.Module) -> list:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks", "_backward_hooks")
    modules = [
        (name, type(module), module.training, getattr(module, "p", None))
        + tuple(len(getattr(module, kind)) for kind in hooks)
        for name, module in model.named_modules()
    ]
    trained = [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
    return modules + trained + list(model.state_dict())
