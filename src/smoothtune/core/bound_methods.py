"""Methods on a model and its optimizer: bound to both, called around every update, resumed."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from smoothtune.core.attachment import Attachment, holds
from smoothtune.core.compute_loss import ComputeLoss, model_loss
from smoothtune.core.forward import Batch, ForwardPass, device_of
from smoothtune.core.loss_sum import LossSum
from smoothtune.core.non_finite import Checks
from smoothtune.core.optimizer_hooks import (
    WATCHING,
    OptimizerHooks,
    hook_all_optimizers,
    needs_updates,
    unwrapped_optimizer,
)
from smoothtune.core.regularizer import LossTerm, Regularizer, TaskLoss, entries_under
from smoothtune.core.strength import Strengths
from smoothtune.core.support import check
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import in_float32
from smoothtune.nn.distributed import UnusedWeights
from smoothtune.nn.environments import Surroundings
from smoothtune.nn.low_bit import keep_unpacked
from smoothtune.nn.model_facts import PROBLEM_TYPES, declaring, problem_type


class BoundMethods:
    """The methods of an `Objective`, and what they are bound to."""

    def __init__(self, *methods: Regularizer | Sequence[Regularizer]):
        """Combine methods, or lists of them; their order does not matter.

        Raises:
            TypeError: something else than a method is given.
            ValueError: two methods both want to replace the task loss, or one is given twice.
        """
        regularizers = methods_in(methods)
        if len({id(r) for r in regularizers}) < len(regularizers):
            raise ValueError("one method is given twice: make two of them, for two terms")
        replacing = [r.name for r in regularizers if isinstance(r, TaskLoss)]
        if len(replacing) > 1:
            raise ValueError(
                f"{' and '.join(replacing)} each replace the task loss: use one of them"
            )
        self.regularizers = {name: r for name, r in _named(regularizers) if r.is_on}
        self.seed = torch.initial_seed()
        self.checks = Checks()
        self._attachment: Attachment | None = None
        self._last: weakref.ref[nn.Module] | None = None  # the model it was last attached to
        self.optimizer: torch.optim.Optimizer | None = None
        self._hooks: OptimizerHooks | None = None
        self._around = WeakKeyDictionary[nn.Module, dict[Any, Surroundings]]()
        self._begin()

    def _begin(self) -> None:
        """As if no model had been seen."""
        self.calls = 0
        self._state: dict[str, Tensor] = {}  # when it was detached
        self.strengths = Strengths(self.regularizers)
        self._sum = LossSum(self.strengths)
        self._unused = UnusedWeights()
        # updates by an optimizer that it is not bound to
        self._trained: set[nn.Parameter] = set()
        self._unseen: str | None = None  # the optimizer's class
        self._last_step = 0  # before the last batch

    # --- connecting --------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> Self:
        """Prepare every method on the pre-trained model.

        On the model that it was attached to last it goes on: no weight is re-initialized again, and
        the methods have the state that they had. On another one it begins again.

        Raises:
            RuntimeError: it is attached already, or another objective is attached to the model.
            ValueError: a method does not support this model; the message says what to change.
        """
        if self._attachment is not None:
            raise RuntimeError("this objective is attached already: call detach() first")
        check(self.regularizers, model)
        bare, methods = unwrap(model), list(self.regularizers.values())
        keep_unpacked(bare)
        last = None if self._last is None else self._last()
        again = last is not None and holds(bare, last)
        self._attachment = Attachment(bare, methods, again=again)
        self._around.clear()
        if self._last is not None and not again:
            self._begin()
        self._last, self.seed = weakref.ref(bare), torch.initial_seed()
        if any(needs_updates(regularizer) for regularizer in methods):
            self._trained = {weight for weight in bare.parameters() if weight.requires_grad}
            hook_all_optimizers()
            WATCHING.add(self)
        if state := self._state:
            try:
                self.load_state_dict(state)
            except BaseException:
                self.detach()
                self._state = state
                raise
        return self

    def bind_optimizer(self, optimizer: torch.optim.Optimizer) -> Self:
        """Call `before_step` and `after_step` around every update of the optimizer.

        Optimizer hooks see unscaled, reduced gradients, once per update, in any loop; they are
        skipped with the update when a gradient scaler finds an overflow. With `step(closure)` the
        gradients are those that the closure leaves.

        Args:
            optimizer: as the loop holds it, prepared by accelerate or not.

        Raises:
            RuntimeError: the objective is bound to an optimizer already.
        """
        optimizer = unwrapped_optimizer(optimizer)
        if self._hooks is not None:
            raise RuntimeError(
                "this objective is bound to an optimizer already, whose updates it counts: use one "
                "optimizer with several parameter groups"
            )
        for regularizer in self.regularizers.values():
            regularizer.bind_optimizer(self.model, optimizer)
        methods = self.regularizers.values()
        self._hooks = OptimizerHooks(optimizer, methods, self.before_step, self.after_step)
        self.optimizer = optimizer
        return self

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        num_training_steps: int | None = None,
    ) -> Self:
        """`attach` and `bind_optimizer`: all that a plain loop needs.

        Args:
            model: as for `attach`.
            optimizer: as for `bind_optimizer`.
            num_training_steps: updates of the run, for fields that are a fraction of it.
        """
        last, state = self._last, self._state
        resets = any(r.traits.resets_weights for r in self.regularizers.values())
        weights = [(w, w.detach().clone()) for w in unwrap(model).parameters() if resets]
        self.attach(model)
        self.expect(num_training_steps)
        try:
            return self.bind_optimizer(optimizer)
        except BaseException:
            self.detach()
            if resets:  # so does a second try
                self._last, self._state = last, state
            for weight, before in weights:
                weight.data.copy_(before)
            raise

    def expect(self, num_training_steps: int | None, *, accumulates: bool = True) -> None:
        """Tell the methods of the run.

        Args:
            num_training_steps: its updates, if they are known.
            accumulates: whether an update may have several batches; if not, less memory is needed.
        """
        self._sum.keeps = accumulates
        for regularizer in self.regularizers.values():
            regularizer.num_training_steps = num_training_steps

    def unbind_optimizer(self) -> None:
        """Act no longer on the updates of the optimizer, so that another one may be bound."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = self.optimizer = None

    def detach(self) -> None:
        """Leave model and optimizer as they were found."""
        self.unbind_optimizer()
        if self._attachment is not None:
            state = {} if self._attachment.lost_method else self.state_dict()
            # copied, as undoing a method may write to what its state is a view of
            self._state = {k: value.detach().to("cpu", copy=True) for k, value in state.items()}
            WATCHING.discard(self)
            self._unseen = None
            self._attachment.undo()
            self._attachment = None
            self._around.clear()

    @property
    def model(self) -> nn.Module:
        """The unwrapped model the objective is attached to."""
        if self._attachment is None:
            raise RuntimeError("attach the objective to a model first: objective.bind(model, ...)")
        return self._attachment.model

    @property
    def step(self) -> int:
        """Number of updates seen."""
        return self.strengths.step

    @step.setter
    def step(self, value: int) -> None:
        self.strengths.step = value

    # --- around updates ----------------------------------------------------------------------

    def calibrate(
        self, model: nn.Module, batch: Batch, compute_loss: ComputeLoss | None = None
    ) -> None:
        """Let methods measure the pre-trained model, as JacHess does, before the first update.

        Trainers do so on the first 32 rows of the training data. In a loop of your own call it
        where an update has several batches or processes, with the same rows in each: what is not
        measured by then is measured on the first batch, with a warning if there are more.

        Args:
            model: as the loop holds it.
            batch: model inputs; labels are not needed.
            compute_loss: as of a call.
        """
        device, bare = device_of(batch), unwrap(model)
        for name, regularizer in self.regularizers.items():
            if not (isinstance(regularizer, LossTerm) and regularizer.calibrates):
                continue
            clean = ForwardPass(
                bare,
                {key: value for key, value in batch.items() if key != "example_id"},
                compute_loss=compute_loss or model_loss,
                points=regularizer.points(),
                side=regularizer.side,
                dropout="off",
            )
            with in_float32(model, device), rng.stream(device, self.seed, f"{name}/calibrate", 0):
                regularizer.calibrate(clean)

    def before_step(self) -> None:
        """Let the methods edit the gradients; just before an update."""
        if self._unused.weights:
            self._unused.forget()
        self._unused.weights = None
        self.strengths.finish(self._sum.finish())
        for name, regularizer in self.regularizers.items():
            if not regularizer.acts_before:
                continue
            device = next(self.model.parameters()).device
            with rng.stream(device, self.seed, f"{name}/gradients", self.step, every_process=True):
                regularizer.before_step(self.model)

    def after_step(self) -> None:
        """Let the methods read or correct the new weights; just after an update."""
        self.step += 1
        for regularizer in self.regularizers.values():
            if regularizer.acts_after:
                regularizer.after_step(self.model)

    def notice(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer, of this model or of another, has made an update."""
        if self._hooks is not None and (optimizer is self.optimizer or self._hooks.stepping):
            return  # or it is one that the bound optimizer wraps
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        if any(weight in self._trained for weight in weights):
            self._unseen = type(optimizer).__name__

    # --- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name, all that a resumed run needs beside model and optimizer."""
        strengths = self.strengths.state_dict()
        # a seed has 64 bits, and below 0 it is counted from 2^64; an entry has 63 and a sign
        seed = self.seed - (self.seed >> 63 << 64)
        counters = {"seed": seed, "step": self.step, "calls": self.calls}
        if self._attachment is not None:
            declared = problem_type(self.model)  # a model of one's own may have another
            known = declared in PROBLEM_TYPES
            counters["problem_type"] = PROBLEM_TYPES.index(declared) if known else 0
        state = {key: torch.tensor(value) for key, value in counters.items()}
        state |= {f"strength.{key}": value for key, value in strengths.items()}
        for name, regularizer in self.regularizers.items():
            state |= {f"{name}/{key}": value for key, value in regularizer.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            RuntimeError: the objective is not attached.
            ValueError: the state was written with other methods, or other fields of them.
        """
        model = self.model  # attaching to it begins anew
        methods = {key.split("/")[0] for key in state if "/" in key}
        if unknown := methods - set(self.regularizers):
            raise ValueError(
                f"the saved state belongs to {sorted(unknown)}, but this objective has "
                f"{sorted(self.regularizers)}: resume with the methods of the interrupted run"
            )
        self.seed, self.step, self.calls = (int(state[key]) for key in ("seed", "step", "calls"))
        self.seed %= 2**64
        self._sum.finish()
        self.strengths.load_state_dict(entries_under("strength.", state))
        declared = PROBLEM_TYPES[int(state.get("problem_type", 0))]
        if declared and problem_type(model) is None:
            declaring(model).config.problem_type = declared  # type: ignore[union-attr]
        for name, regularizer in self.regularizers.items():
            try:
                regularizer.load_state_dict(entries_under(f"{name}/", state))
            except KeyError as error:
                raise ValueError(
                    f"the saved state lacks {error} of {name}: it was written with other fields of "
                    "it, or by another version; resume with those of the interrupted run"
                ) from error


def methods_in(value: Any) -> list[Regularizer]:
    """The methods of an argument: one, or a sequence of methods and sequences.

    Raises:
        TypeError: a value is something else.
    """
    if isinstance(value, list | tuple):
        return [method for each in value for method in methods_in(each)]
    if isinstance(value, type) and issubclass(value, Regularizer):
        raise TypeError(f"{value.__name__} is a class: write {value.__name__}()")
    if isinstance(value, str):
        raise TypeError(
            f"{value!r} is a name: write an instance of the method's class, such as LNSR(), or "
            f"smoothtune.METHODS[{value!r}]()"
        )
    if not isinstance(value, Regularizer):
        raise TypeError(f"{value!r} is no method: write an instance of one, such as LNSR()")
    return [value]


def _named(regularizers: list[Regularizer]) -> Iterator[tuple[str, Regularizer]]:
    """Methods by name, sorted; the second of the same name is called name_2."""
    seen: dict[str, int] = {}
    for regularizer in sorted(regularizers, key=lambda r: r.name):
        count = seen[regularizer.name] = seen.get(regularizer.name, 0) + 1
        yield (regularizer.name if count == 1 else f"{regularizer.name}_{count}"), regularizer
