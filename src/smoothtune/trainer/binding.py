"""Methods on the model of a trainer: attached and detached, and told of a training's beginning."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import DistributedType, DynamoBackend
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from smoothtune.core.attachment import holds
from smoothtune.core.objective import Objective
from smoothtune.core.optimizer_hooks import unwrapped_optimizer
from smoothtune.core.regularizer import CALIBRATION_ROWS
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.compile import compile_blocks, is_compiled_block, uncompile_blocks
from smoothtune.trainer.checkpoints import Checkpoints
from smoothtune.trainer.compatibility import check_trainer
from smoothtune.trainer.task_loss import TrainerLoss
from smoothtune.trainer.term_means import TermMeans

logger = logging.getLogger(__name__)


class Binding(TrainerCallback):
    """Connects an objective to the model of one `Regularized`, from `attach` to `detach`."""

    def __init__(self, trainer: Trainer, objective: Objective):
        self.trainer: Any = trainer
        self.objective, self.attached = objective, False
        self.checkpoints = Checkpoints(trainer, objective)
        self.means = TermMeans(objective)
        self.scaling: dict[str, Any] = {}  # attributes by which the Trainer scales a loss
        self.own_scaling: dict[str, Any] = {}  # and what it had in their place
        self.epoch = 0  # the one at hand, from 0 on
        self.began_at = 0  # update of the checkpoint that the training was resumed from
        self.calls = 0  # of the objective, when the training began
        self.over = False  # whether an epoch is begun after the last update
        # DeepSpeed's updates are counted by the Trainer's
        self.is_zero = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
        self.attach()

    # --- connecting --------------------------------------------------------------------------

    def attach(self) -> None:
        """Attach the methods to the trainer's model."""
        if self.attached:
            return
        trainer = self.trainer
        with ExitStack() as undo:
            self._compile(undo)
            undo.callback(self.objective.detach)
            self.objective.attach(trainer.model)
            if trainer.optimizer is not None:
                self.use(trainer.optimizer)
            self.undo = undo.pop_all()
        self.model, self.attached = unwrap(trainer.model), True
        self._take_loss()
        self.objective.checks.late = True

    def detach(self) -> None:
        """Give model and trainer back as they were."""
        if not self.attached:
            return
        self.attached = False
        self._give_loss_back()
        self.objective.checks.clear()
        self.objective.checks.late = False
        self.undo.close()

    def _take_loss(self) -> None:
        """Scale the trainer's loss here, so that the Trainer takes the mean over the batches."""
        own = vars(self.trainer)
        self.task = TrainerLoss(self.trainer)
        counts = self.task.accepts_loss_kwargs
        self.scaling = {"model_accepts_loss_kwargs": counts, "loss_is_scaled_for_ga": False}
        self.own_scaling = {name: own[name] for name in self.scaling if name in own}
        own.update(self.scaling)

    def _give_loss_back(self) -> None:
        """What was set on the trainer meanwhile stays."""
        own = vars(self.trainer)
        for name, value in self.scaling.items():
            if own.get(name) == value:
                del own[name]
                if name in self.own_scaling:
                    own[name] = self.own_scaling[name]

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Act on the updates of this optimizer, in place of another one."""
        if unwrapped_optimizer(optimizer) is not self.objective.optimizer:
            self.objective.unbind_optimizer()
            self.objective.bind_optimizer(optimizer)

    def _compile(self, undo: ExitStack) -> None:
        """With `torch_compile`, compile the blocks, and not the model as the Trainer would."""
        model, args = self.trainer.model, self.trainer.args
        if not args.torch_compile:
            return
        plugin = self.trainer.accelerator.state.dynamo_plugin
        undo.callback(setattr, plugin, "backend", plugin.backend)
        plugin.backend = DynamoBackend.NO
        if not any(map(is_compiled_block, model.modules())):
            undo.callback(
                uncompile_blocks, compile_blocks(model, backend=args.torch_compile_backend)
            )

    # --- before a training -------------------------------------------------------------------

    def renew(self, trial: Any) -> None:
        """Begin again, with the methods as they were given: `train` will make a new model.

        In a `trial` of a hyperparameter search, the trainer's `objective` is the score.
        """
        self.detach()
        methods = self.objective.regularizers.values()
        self.objective = Objective(*(replace(method) for method in methods))
        self.checkpoints = Checkpoints(self.trainer, self.objective)
        if trial is None:
            self.trainer.objective = self.objective
        elif isinstance(trial, dict):  # Ray and W&B train a copy of the trainer elsewhere
            raise ValueError('hyperparameter_search is verified with Optuna: set backend="optuna"')

    def adopt(self, model: nn.Module) -> None:
        """Attach the methods to a model that `model_init` has made."""
        self.trainer.model = model
        self.trainer.optimizer = self.trainer.lr_scheduler = None
        check_trainer(self.objective.regularizers, self.trainer)
        self.attach()

    def resume(self) -> None:
        """Attach the methods again, for a further training of the same model, and of no other."""
        if not holds(self.trainer.model, self.model):
            raise ValueError(
                "trainer.model is another model than the one that the methods were prepared on: "
                "make a trainer of this model, and pass it to regularize()"
            )
        if self.attached:  # the loss may have been set on the trainer since
            self._give_loss_back()
            self._take_loss()
        self.attach()

    # --- in a training -----------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Bind the optimizer that is really used; load the methods' state, after the model's."""
        self.began_at = state.global_step
        if self.is_zero:  # its optimizer takes a step for every group of an update
            self.objective.unbind_optimizer()
        else:
            self.use(self.trainer.optimizer)
        accumulates = args.gradient_accumulation_steps > 1
        self.objective.expect(state.max_steps, accumulates=accumulates)
        self.epoch = epochs_behind(objects["train_dataloader"], args, state) - 1
        self.over = False
        self.checkpoints.go_on()
        self.means = TermMeans(self.objective)
        self.calls = self.objective.calls

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Take no step after the last one; transformers would, resumed there within an epoch.

        The last one is that of `max_steps`, or the one at which a callback ended the training.
        """
        self.epoch += 1
        self.over = state.global_step >= state.max_steps or control.should_training_stop
        if self.over:
            control.should_training_stop = True
        else:
            set_epoch(objects["train_dataloader"], self.epoch)
            self._calibrate(objects["train_dataloader"])

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Just after the optimizer's step: have the losses of the update before checked.

        Raises:
            RuntimeError: the first update was made without the objective.
        """
        if self.objective.calls == self.calls:
            raise RuntimeError(
                "an update was made without the methods: compute_loss or training_step was set on "
                "this trainer after regularize() and does not call what was there. Set it before, "
                "or give the Trainer a compute_loss_func"
            )
        if self.is_zero:
            self.objective.before_step()
            self.objective.after_step()
        self.objective.checks.turn()

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Say which terms were held by their bound nearly always, or changed next to nothing."""
        if state.is_world_process_zero:
            for remark in self.objective.strengths.remarks():
                logger.warning(remark)

    def _calibrate(self, loader: Any) -> None:
        """Let methods measure the pre-trained model on the first training rows."""
        trainer, methods = self.trainer, self.objective.regularizers.values()
        rows: Any = getattr(loader, "dataset", None)  # unlabeled ones come after the others
        is_map_style = hasattr(rows, "__getitem__") and hasattr(rows, "__len__")
        if self.objective.step or not any(r.calibrates for r in methods):
            return
        if not is_map_style or not len(rows):  # the first rows of a stream would be used up
            return
        count = min(CALIBRATION_ROWS, len(trainer.train_dataset))
        # which the Trainer sets for every update, and losses of its subclasses read
        trainer.current_gradient_accumulation_steps = 1
        with rng.isolated(trainer.model.device):
            inputs = trainer._prepare_inputs(loader.collate_fn([rows[i] for i in range(count)]))
            prepared = self.task.prepare(inputs, None)
            self.objective.calibrate(trainer.model, prepared.batch, prepared.compute_loss)


def epochs_behind(loader: Any, args: TrainingArguments, state: TrainerState) -> int:
    """Epochs before the one that a training begins or goes on in, as the Trainer counts them."""
    try:
        batches = len(loader)
    except TypeError:  # without a length there is a single epoch
        return 0
    return state.global_step // max(-(-batches // args.gradient_accumulation_steps), 1)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell all samplers of a loader the epoch, on which their order depends.

    transformers does not reach those of a process's share of the batches when it skips the first
    ones, so that a run of several processes resumed within an epoch would see another order.
    """
    part: Any = getattr(loader, "batch_sampler", None)
    while part is not None:
        samplers: tuple[Any, Any] = (part, getattr(part, "sampler", None))
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        part = getattr(part, "batch_sampler", None)
