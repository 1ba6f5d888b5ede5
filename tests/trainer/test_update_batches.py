"""The rows of updates and evaluations over several processes, without other processes."""

from types import SimpleNamespace

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, skip_first_batches
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from helpers.training import Rows, arguments, collate
from smoothtune import L2SP, SmoothTrainer
from smoothtune.data.batches import LengthGroupedSampler
from smoothtune.testing import tiny_model
from smoothtune.trainer.binding import set_epoch
from smoothtune.trainer.run_record import CUT, EXAMPLES, differences
from smoothtune.trainer.unlabeled import AlternatingBatches
from smoothtune.trainer.update_batches import (
    PADDING_BATCH,
    EvaluationBatches,
    MarkingCollator,
    Size,
    UpdateBatches,
    UpdateParts,
    WithPaddingRows,
)


def shards(batches, processes: int) -> list[list[list[int]]]:
    """The batches of every process, as accelerate deals them out."""
    return [
        list(BatchSamplerShard(batches, num_processes=processes, process_index=index))
        for index in range(processes)
    ]


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 27, 31, 32])
@pytest.mark.parametrize(("processes", "accumulation"), [(2, 1), (2, 2), (4, 1), (3, 2)])
def test_every_row_comes_once_in_the_update_of_one_process(rows, processes, accumulation):
    size = 4
    batches = UpdateBatches(
        SequentialSampler(range(rows)), size, accumulation=accumulation, processes=processes
    )
    dealt = shards(batches, processes)
    assert len(batches) == sum(map(len, dealt))
    assert len({len(each) for each in dealt}) == 1  # else one would wait for the others
    examples = size * processes * accumulation
    updates = -(-rows // examples)
    for update in range(updates):
        here = [
            batch
            for each in dealt
            for batch in each[update * accumulation : (update + 1) * accumulation]
        ]
        real = sorted(row for batch in here for row in batch if row >= 0)
        assert real == list(range(update * examples, min((update + 1) * examples, rows)))
        sizes = [sum(row >= 0 for row in batch) for batch in here]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1
    assert sum(map(len, dealt[0])) > 0


@pytest.mark.parametrize("rows", [1, 3, 8, 11, 27])
@pytest.mark.parametrize("processes", [2, 4])
def test_evaluation_batches_of_all_processes_have_one_size(rows, processes):
    batches = EvaluationBatches(rows, 3, processes=processes)
    dealt = shards(batches, processes)
    gathered = []
    for step in zip(*dealt, strict=True):
        assert len({len(batch) for batch in step}) == 1  # as gathering needs
        gathered += [row for batch in step for row in batch]
    assert gathered[:rows] == list(range(rows))
    assert all(row == -rows for row in gathered[rows:])
    assert len(batches) == sum(map(len, dealt))


def test_a_padding_row_is_marked():
    collated = MarkingCollator(lambda rows: {"x": [row["x"] for row in rows]})
    rows = WithPaddingRows([{"x": 10}, {"x": 11}])
    assert collated(rows.__getitems__([0, 1])) == {"x": [10, 11]}
    assert collated(rows.__getitems__([-2])) == {"x": [11], PADDING_BATCH: True}


def test_a_padding_row_has_no_gradient(tmp_path):
    model = tiny_model("bert")
    trainer = SmoothTrainer(
        model=model,
        args=arguments(tmp_path),
        train_dataset=Rows(4),
        regularizers=[L2SP(weight=1.0, alpha=1.0, beta=1.0)],
    )
    batch = collate([Rows(4)[0]])
    model.train()
    drawn = iter([dict(batch), dict(batch) | {PADDING_BATCH: True}])
    (one, none), _ = trainer.get_batch_samples(drawn, 2, torch.device("cpu"))
    parts = trainer._binding.task.parts
    assert parts.totals[0].rows == 1
    assert parts.shares(one, unlabeled=False)[0] == 2  # of two batches
    padding = trainer.compute_loss(model, none)
    assert padding.item() == 0
    padding.backward()
    assert not any(weight.grad is not None and weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("kind", ["updates", "unlabeled"])
def test_the_order_of_an_epoch_reaches_every_process(kind, skipped):
    """Also where the first batches are skipped, as after a resume within an epoch."""

    def batches():
        if kind == "unlabeled":
            return AlternatingBatches(RandomSampler(range(16)), 16, 2, "step", 2, seed=3)
        order = LengthGroupedSampler(list(range(16)), 4, seed=3)
        return UpdateBatches(order, 2, accumulation=1, processes=2)

    def of_epoch(epoch):
        shared = batches()
        for sampler in (shared, getattr(shared, "sampler", shared)):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        return list(BatchSamplerShard(shared, num_processes=2, process_index=1))[skipped:]

    loader = DataLoader(range(32), batch_sampler=batches(), collate_fn=list)
    shard = BatchSamplerShard(loader.batch_sampler, num_processes=2, process_index=1)
    dealt = DataLoaderShard(range(32), batch_sampler=shard, collate_fn=list)
    set_epoch(dealt, 1)
    dealt.iteration = 1
    later = skip_first_batches(dealt, skipped) if skipped else dealt
    assert list(later) == of_epoch(1) != of_epoch(0)


def test_a_run_with_known_examples_per_update_may_cut_them_otherwise():
    before = dict(zip(CUT, (4, 1, 2), strict=True))
    now = dict(zip(CUT, (8, 1, 1), strict=True))
    assert "world_size 2, here 1" in differences(before, now)
    assert "world_size 2, here 1" in differences(before, now | {EXAMPLES: 8})  # an old checkpoint
    assert differences(before | {EXAMPLES: 8}, now | {EXAMPLES: 8}) == ""
    assert EXAMPLES in differences(before | {EXAMPLES: 8}, now | {EXAMPLES: 16})


def test_the_count_of_an_update_has_one_type_in_every_process():
    """With class weights it is a sum of weights; a padding row has none."""
    found = []

    def reduce(counts, reduction):
        found.append(counts)
        return counts

    accelerator = SimpleNamespace(reduce=reduce, num_processes=2)
    trainer = SimpleNamespace(accelerator=accelerator, label_names=["labels"])
    for size in (Size(1, torch.tensor(2.5)), Size(0, 0)):
        parts = UpdateParts(trainer, lambda _, size=size: size, lambda _: False)
        parts.get_batch_samples(lambda *_: ([{}], None), iter(()), 1, torch.device("cpu"))
    assert found[0].dtype == found[1].dtype
