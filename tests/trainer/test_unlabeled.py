"""Unlabeled batches between labeled ones."""

from itertools import product

import pytest
import torch
from datasets import Dataset
from torch.utils.data import RandomSampler
from transformers import Trainer

from helpers.causal import Texts, tiny_language_model
from helpers.training import Rows, arguments, collate
from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    R3F,
    SAM,
    VAT,
    ForwardPass,
    FreeLB,
    JacHess,
    LabelSmoothing,
    Objective,
    Plain,
    RDrop,
    SmoothTrainer,
    regularize,
)
from smoothtune.errors import CheckpointError
from smoothtune.testing import fixed_draws, tiny_model
from smoothtune.trainer.unlabeled import AlternatingBatches
from smoothtune.trainer.weighted_losses import ClassWeightedLoss


def kinds(sampler, labeled):
    return ["L" if batch[0] < labeled else "U" for batch in sampler]


@pytest.mark.parametrize(
    ("alternate", "group", "expected"),
    [
        ("step", 1, "LULULULU"),
        ("step", 2, "LLUULLUU"),
        ("epoch", 1, "LLLLUUUU"),
        ("batch", 2, "LULULULU"),
        ("batch", 4, "LLUULLUU"),
    ],
)
def test_order_of_batches(alternate, group, expected):
    sampler = AlternatingBatches(RandomSampler(range(16)), 40, 4, alternate, group, seed=3)
    assert "".join(kinds(sampler, 16)) == expected
    assert len(sampler) == len(expected)


def test_labeled_rows_come_once_and_unlabeled_ones_before_any_comes_again():
    sampler = AlternatingBatches(RandomSampler(range(12)), 30, 4, "step", 1, seed=0)
    rows = [row for batch in sampler for row in batch]
    labeled, unlabeled = [r for r in rows if r < 12], [r for r in rows if r >= 12]
    assert sorted(labeled) == list(range(12))
    assert len(set(unlabeled)) == len(unlabeled) == 12
    assert set(unlabeled) <= set(range(12, 42))


@pytest.mark.parametrize(("group", "count"), [(1, 3), (2, 4)])
def test_few_unlabeled_rows_are_drawn_again_and_the_last_update_is_full(group, count):
    sampler = AlternatingBatches(RandomSampler(range(10)), 3, 4, "step", group, seed=0)
    labeled = [batch for batch in sampler if batch[0] < 10]
    unlabeled = [batch for batch in sampler if batch[0] >= 10]
    assert [len(batch) for batch in labeled] == [4] * count
    assert [len(batch) for batch in unlabeled] == [4] * count
    assert {r for batch in unlabeled for r in batch} == {10, 11, 12}
    assert {r for batch in labeled for r in batch} == set(range(10))


def test_epochs_and_seeds_differ_and_repeat():
    def order(seed, epoch):
        sampler = AlternatingBatches(RandomSampler(range(16)), 16, 4, "step", 1, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_unlabeled_rows_of_similar_length_share_a_batch():
    lengths = [4, 50] * 20
    sampler = AlternatingBatches(RandomSampler(range(32)), 40, 4, "step", 1, 0, lengths)
    unlabeled = [[lengths[row - 32] for row in batch] for batch in sampler if batch[0] >= 32]
    assert len(unlabeled) == 8
    assert sum(len(set(batch)) > 1 for batch in unlabeled) <= 2


@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_labeled_rows_come_in_the_order_that_they_have_alone(tmp_path, strategy):
    def order(unlabeled, accumulation):
        args = arguments(
            tmp_path,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulation,
            train_sampling_strategy=strategy,
            seed=7,
        )
        trainer = SmoothTrainer(
            model=tiny_model("bert"),
            args=args,
            train_dataset=Rows(16),
            regularizers=[VAT()],
            unlabeled_dataset=unlabeled,
        )
        loader, found = trainer.get_train_dataloader(), []
        for epoch in range(2):
            loader.set_epoch(epoch)
            if hasattr(loader.batch_sampler, "set_epoch"):  # as the Trainer does
                loader.batch_sampler.set_epoch(epoch)
            found += [b["input_ids"].tolist() for b in loader if "unlabeled" not in b]
        return found

    alone = order(None, 1)
    assert order(Rows(40, seed=9), 2) == alone
    assert (alone[:4] != alone[4:]) == (strategy == "random")


def test_the_order_leaves_generators_of_accelerators_alone(monkeypatch):
    """From which dropout draws: all processes and epochs would have the same masks."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded"))
    state = torch.get_rng_state()
    assert len(list(AlternatingBatches(RandomSampler(range(8)), 8, 4, "step", 1, seed=0))) == 4
    assert torch.equal(torch.get_rng_state(), state)


def test_columns_that_the_model_does_not_take_are_dropped_beside_unlabeled_rows_too(tmp_path):
    def rows(count):
        columns = {name: x.tolist() for name, x in collate(list(map(dict, Rows(count)))).items()}
        return Dataset.from_dict(columns | {"text": ["a film"] * count})

    class Tensors:
        def __call__(self, rows):
            return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    args = arguments(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        remove_unused_columns=True,
    )
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=args,
        train_dataset=rows(8),
        data_collator=Tensors(),
        regularizers=[VAT()],
        unlabeled_dataset=rows(8),
    )
    labeled, unlabeled, *_ = trainer.get_train_dataloader()
    assert set(labeled) == {"input_ids", "attention_mask", "labels"}
    assert set(unlabeled) == {"input_ids", "attention_mask", "unlabeled"}


def test_dual_mode_trains_on_both_and_takes_labels_of_none(tmp_path):
    class Poisoned(Rows):
        """Labels that would raise if anything looked at them."""

        def __getitem__(self, i):
            return super().__getitem__(i) | {"labels": torch.tensor(999)}

    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=6, per_device_train_batch_size=4, logging_steps=1),
        train_dataset=Rows(16),
        regularizers=[JacHess(c=0.01, smoothness=[1.0, 1.0], batches="unlabeled", weight=1.0)],
        unlabeled_dataset=Poisoned(40, seed=9),
        alternate="step",
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert ["loss/task" in entry for entry in logs] == [True, False] * 3
    assert ["loss/jachess" in entry for entry in logs] == [False, True] * 3
    assert trainer.state.epoch == pytest.approx(6 / 8)


@pytest.mark.parametrize(("alternate", "accumulation"), [("step", 1), ("batch", 2)])
def test_resuming_within_an_epoch_goes_on_where_it_stopped(tmp_path, alternate, accumulation):
    def trainer():
        args = arguments(
            tmp_path,
            max_steps=6,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulation,
            save_strategy="steps",
            save_steps=3,
        )
        return SmoothTrainer(
            model=tiny_model("bert", dropout=0.1),
            args=args,
            train_dataset=Rows(16),
            regularizers=[JacHess(c=0.01, weight=1.0)],
            unlabeled_dataset=Rows(40, seed=9),
            alternate=alternate,
        )

    whole, resumed = trainer(), trainer()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def dual(tmp_path, method, *, alternate="step", **changes):
    settings = {"max_steps": 2, "per_device_train_batch_size": 4, **changes}
    return SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, **settings),
        train_dataset=Rows(16),
        regularizers=[method],
        unlabeled_dataset=Rows(40, seed=9),
        alternate=alternate,
    )


def weighted(model, batch):
    """The mean of ClassWeightedLoss over a whole batch."""
    outputs = model(**{key: value for key, value in batch.items() if key != "labels"})
    return ClassWeightedLoss([1.0, 2.0, 0.5])(outputs, batch["labels"]), outputs


CLASSES, WORDS = (tiny_model, "bert", Rows), (tiny_language_model, "opt", Texts)
KINDS = {  # of task loss: model, rows, what the Trainer gets, what the objective gets
    "the model's own": (*CLASSES, {}, None),
    "class weights": (
        *CLASSES,
        {"compute_loss_func": ClassWeightedLoss([1.0, 2.0, 0.5])},
        weighted,
    ),
    "next token": (*WORDS, {}, None),
}


def r3f(batches="both"):
    return R3F(noise="normal", sigma=0.1, batches=batches, weight=1.0)


METHODS = {
    "on both": lambda: [r3f()],
    "on unlabeled": lambda: [r3f("unlabeled")],
    "in place of the task loss, a term on both": lambda: [FreeLB(epsilon=0.1), r3f()],
    "in place of the task loss, a term on unlabeled": lambda: [LabelSmoothing(), r3f("unlabeled")],
}
PLAIN_LOSS = ("class weights", "in place of the task loss, a term on unlabeled")  # refused
CASES = [case for case in product(KINDS, METHODS) if case != PLAIN_LOSS]


@pytest.mark.parametrize(
    ("kind", "methods", "accumulation"),
    [  # fast: every case with one of the two, in turn
        pytest.param(*case, size, marks=() if number % 2 == index else pytest.mark.slow)
        for number, case in enumerate(CASES)
        for index, size in enumerate([2, 4])
    ],
)
def test_an_update_of_both_is_the_sum_of_a_labeled_and_an_unlabeled_one(
    tmp_path, kind, methods, accumulation
):
    """However it is cut: with SGD at a rate of 1 the change of the weights is the gradient."""
    make, architecture, rows, given, loss = KINDS[kind]

    def made():
        return make(architecture), METHODS[methods]()

    assert_sum_of_both(tmp_path, made, accumulation, rows, given, loss)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_r_drop_compares_its_passes_on_both(tmp_path, monkeypatch, accumulation):
    """The second without dropout, as fixed draws would make both alike."""
    at = ForwardPass.at
    monkeypatch.setattr(ForwardPass, "at", lambda self: at(self, dropout="off"))

    def made():
        return tiny_model("bert", dropout=0.2), [RDrop(alpha=3000.0)]

    terms = assert_sum_of_both(tmp_path, made, accumulation, Rows, {}, None)
    assert all(term["r_drop/divergence"] * 3000 > 0.01 for term in terms)


def assert_sum_of_both(tmp_path, made, accumulation, rows, given, loss):
    """One update of a trainer, and the terms and gradients of both batches by the objective."""
    model, regularizers = made()
    model.config.problem_type = "single_label_classification"
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with fixed_draws():
        trainer = SmoothTrainer(
            model=model,
            args=arguments(
                tmp_path,
                learning_rate=1.0,
                per_device_train_batch_size=16 // accumulation,
                gradient_accumulation_steps=accumulation,
            ),
            train_dataset=rows(8),
            regularizers=regularizers,
            unlabeled_dataset=rows(8),
            alternate="batch",
            **given,
        )
        trainer.train()
    logs = trainer.state.log_history[0]

    model, regularizers = made()
    model.config.problem_type = "single_label_classification"
    objective = Objective(*regularizers).attach(model)
    labeled = {key: value for key, value in collate(rows(8)).items() if key != "example_id"}
    unlabeled = {key: labeled[key] for key in ("input_ids", "attention_mask")}
    values = []
    with fixed_draws():
        for batch in (labeled, unlabeled | {"unlabeled": True}):
            objective(model, batch, loss if "labels" in batch else None).backward()
            values.append({name: float(value) for name, value in objective.terms.items()})
    for name, weight in model.named_parameters():
        change = before[name] - dict(trainer.model.named_parameters())[name].detach()
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        # a mean number of label tokens is a number in float32
        torch.testing.assert_close(change, expected, rtol=1e-6, atol=1e-8, msg=name)
    total = sum(value["loss"] for value in values)
    assert logs["loss"] == pytest.approx(total, abs=1e-4)  # transformers 4.x rounds it
    parts = {name for value in values for name in value if name.startswith("loss/")}
    assert parts == {name for name in logs if name.startswith("loss/")}
    for name in parts:
        applied = sum(value.get(name, 0.0) for value in values)
        assert logs[name] == pytest.approx(applied, rel=1e-6)
    assert sum(logs[name] for name in parts) == pytest.approx(total, rel=1e-6)
    return values


@pytest.mark.parametrize("accumulation", [2, 4])
def test_the_share_of_a_term_is_that_of_labeled_and_unlabeled_rows_together(tmp_path, accumulation):
    """Of the first update: the gradient of both terms beside that of the task."""
    method = LNSR(share=0.5, detach_clean=False)
    with fixed_draws():
        trainer = SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(
                tmp_path,
                per_device_train_batch_size=16 // accumulation,
                gradient_accumulation_steps=accumulation,
            ),
            train_dataset=Rows(8),
            regularizers=[method],
            unlabeled_dataset=Rows(8, seed=9),
            alternate="batch",
        )
        trainer.train()
    model = tiny_model("bert")
    model.config.problem_type = "single_label_classification"
    term = Objective(LNSR(weight=1.0)).attach(model)
    rows = [collate(Rows(8, seed=seed)) | {"unlabeled": True} for seed in (0, 9)]
    weights = list(model.parameters())
    with fixed_draws():
        both = torch.stack([term(model, each) for each in rows]).sum()
        labeled = {key: rows[0][key] for key in ("input_ids", "attention_mask", "labels")}
        task = model(**labeled).loss
    norms = [
        torch.cat([g.flatten() for g in grads if g is not None]).norm().item()
        for grads in (torch.autograd.grad(x, weights, allow_unused=True) for x in (both, task))
    ]
    log = trainer.state.log_history[0]
    assert log["lnsr/share"] == pytest.approx(0.5, rel=1e-4)
    assert log["lnsr/bounded"] == 0
    mean = trainer.objective.strengths.logs["lnsr"].mean
    assert mean.exp().item() == pytest.approx(norms[1] / norms[0], rel=1e-4)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_a_term_about_weights_counts_once_in_an_update_of_both(tmp_path, accumulation):
    """A word that no row holds is moved by L2-SP alone: by alpha times its way from the start."""
    model = tiny_model("bert")
    trainer = SmoothTrainer(
        model=model,
        args=arguments(
            tmp_path,
            learning_rate=1.0,
            per_device_train_batch_size=16 // accumulation,
            gradient_accumulation_steps=accumulation,
        ),
        train_dataset=Rows(8),
        regularizers=[L2SP(alpha=0.25), VAT(weight=1.0)],
        unlabeled_dataset=Rows(8, seed=9),
    )
    word = model.bert.embeddings.word_embeddings.weight.detach()[2]
    start = word.clone()
    word += 1.0
    trainer.train()
    torch.testing.assert_close(word, start + 0.75)


@pytest.mark.parametrize(("method", "moves"), [(VAT(weight=1.0), True), (VAT(share=0.3), False)])
def test_rows_without_labels_are_told_with_what_is_trained(tmp_path, caplog, method, moves):
    def misnamed(rows):
        return {name: x for name, x in collate(rows).items() if name != "labels"}

    model = tiny_model("bert")
    model.config.problem_type = "single_label_classification"
    before = model.classifier.weight.detach().clone()
    SmoothTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=3, per_device_train_batch_size=4),
        train_dataset=Rows(16),
        data_collator=misnamed,
        regularizers=[method],
    ).train()
    assert torch.equal(model.classifier.weight, before) != moves
    assert "no task loss. Terms with a weight are all that is trained" in caplog.text
    assert "a term with a share or max_share alone moves nothing" in caplog.text


def test_a_run_goes_on_in_the_order_it_began_with(tmp_path):
    cut = {"max_steps": 2, "gradient_accumulation_steps": 2}
    saved = {"save_strategy": "steps", "save_steps": 1}
    dual(tmp_path, LNSR(weight=1.0), alternate="step", **cut, **saved).train()
    other = dual(tmp_path, LNSR(weight=1.0), alternate="batch", **cut)
    with pytest.raises(CheckpointError, match="alternate None, here 'batch'"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize("by_class", [True, False])
def test_a_loader_of_the_users_own_is_not_left_out_silently(tmp_path, by_class):
    class Weighted(Trainer):
        def get_train_dataloader(self):
            return super().get_train_dataloader()

    settings = {"args": arguments(tmp_path), "train_dataset": Rows(8)}
    trainer = (Weighted if by_class else Trainer)(model=tiny_model("bert"), **settings)
    if not by_class:
        trainer.get_train_dataloader = lambda: []
    before = type(trainer), vars(trainer).keys()
    with pytest.raises(ValueError, match="a get_train_dataloader of your own.*_get_train_sampler"):
        regularize(trainer, VAT(), unlabeled_dataset=Rows(8), alternate="step")
    assert (type(trainer), vars(trainer).keys()) == before
    regularize(trainer, VAT())


def test_an_order_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="alternate='batches': write 'batch', 'step', 'epoch'"):
        dual(tmp_path, LNSR(), alternate="batches")


def test_a_script_with_unlabeled_rows_is_told_what_the_order_asks_of_it(tmp_path):
    with pytest.raises(ValueError, match='set an even number, 2 for one of each.*alternate="step"'):
        SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path),
            train_dataset=Rows(16),
            regularizers=[LNSR()],
            unlabeled_dataset=Rows(40, seed=9),
        )


def test_an_update_of_both_needs_batches_of_both(tmp_path):
    with pytest.raises(ValueError, match="gradient_accumulation_steps=3.*set an even number"):
        dual(tmp_path, LNSR(), alternate="batch", gradient_accumulation_steps=3)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_method_that_needs_the_whole_batch_takes_updates_of_one_kind(tmp_path, accumulation):
    with pytest.raises(ValueError, match="sam with") as told:
        SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path, gradient_accumulation_steps=accumulation),
            train_dataset=Rows(16),
            regularizers=[SAM(), LNSR()],
            unlabeled_dataset=Rows(40, seed=9),
        )
    assert "even number" not in str(told.value)


@pytest.mark.parametrize("method", [LNSR(batches="labeled", weight=1.0), L2SP(), CWGNC(), Plain()])
def test_unlabeled_data_that_no_method_uses_are_refused(tmp_path, method):
    with pytest.raises(ValueError, match="no method has a term on unlabeled batches"):
        dual(tmp_path, method)


def test_terms_of_some_updates_leave_unlabeled_batches_of_the_others_without_one(tmp_path):
    """Which would be an error in the second update."""
    with pytest.raises(ValueError, match="with every above 1 of lnsr: .* set every=1, and rows"):
        dual(tmp_path, LNSR(every=2))


@pytest.mark.parametrize(
    ("alternate", "max_steps", "warns"),
    [
        ("epoch", 4, True),
        ("epoch", 5, False),
        ("step", 1, True),
        ("step", 2, False),
        ("batch", 1, False),
    ],
)
def test_an_end_before_any_unlabeled_batch_is_said(tmp_path, caplog, alternate, max_steps, warns):
    trainer = dual(
        tmp_path,
        JacHess(c=0.01, weight=1.0),
        alternate=alternate,
        max_steps=max_steps,
        gradient_accumulation_steps=2 if alternate == "batch" else 1,
    )
    trainer.get_train_dataloader()
    assert ("ends before any unlabeled batch" in caplog.text) == warns


def test_unlabeled_batches_are_marked(tmp_path):
    loader = dual(tmp_path, JacHess(c=0.01, weight=1.0)).get_train_dataloader()
    marks = [batch.get("unlabeled", False) for batch in loader]
    assert marks == [False, True] * 4


def test_a_loss_of_the_users_own_is_not_asked_for_unlabeled_batches(tmp_path):
    class Counting(SmoothTrainer):
        labeled = 0

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            assert "labels" in inputs
            Counting.labeled += 1
            return super().compute_loss(model, inputs, return_outputs)

    trainer = Counting(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=4, per_device_train_batch_size=4),
        train_dataset=Rows(16),
        regularizers=[LNSR(weight=1.0)],
        unlabeled_dataset=Rows(40, seed=9),
        alternate="step",
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert ["loss/task" in entry for entry in logs] == [True, False] * 2
    assert Counting.labeled


@pytest.mark.parametrize(("unlabeled", "message"), [(iter([]), "map-style"), ([], "has no rows")])
def test_data_without_length_or_rows_is_refused(tmp_path, unlabeled, message):
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, gradient_accumulation_steps=2),
        train_dataset=Rows(),
        regularizers=[JacHess(weight=1.0)],
        unlabeled_dataset=unlabeled,
    )
    with pytest.raises(ValueError, match=message):
        trainer.get_train_dataloader()


@pytest.mark.parametrize("seed", [-1, 2**64 - 1])
def test_a_seed_may_be_below_0_or_have_64_bits(seed):
    sampler = AlternatingBatches(RandomSampler(range(8)), 8, 4, "step", 1, seed, [3] * 8)
    assert sorted(row for batch in sampler for row in batch) == list(range(16))
