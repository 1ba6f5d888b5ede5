"""Arguments of a trainer, whichever version of transformers is installed."""

from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from smoothtune.nn.hf_versions import installed_names

SEQUENTIAL = hasattr(TrainingArguments, "train_sampling_strategy")  # an order of the Trainer's


def trainer_arguments(cls=TrainingArguments, **values):
    """Arguments under the names of the newest version; rows in order in the oldest one, too."""
    in_order = values.get("train_sampling_strategy") == "sequential" and not SEQUENTIAL
    if in_order:
        values.pop("train_sampling_strategy")
    made = cls(**installed_names(values))
    if in_order:
        made.in_order = True
    return made


if not SEQUENTIAL:
    drawn = Trainer._get_train_sampler

    def _get_train_sampler(trainer, train_dataset=None):
        if not getattr(trainer.args, "in_order", False):
            return drawn(trainer, train_dataset)
        return SequentialSampler(trainer.train_dataset if train_dataset is None else train_dataset)

    Trainer._get_train_sampler = _get_train_sampler
