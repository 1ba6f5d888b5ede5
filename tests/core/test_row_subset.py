"""Terms on a random part of the batch: what they are, and which passes and masks they share."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.heads import multi_label, question_answering, regression, token_classification
from helpers.seq2seq import seq2seq_batch, tiny_seq2seq
from smoothtune import (
    LNSR,
    R3F,
    SMART,
    CrossHolder,
    ForwardPass,
    FreeLB,
    JacHess,
    Jacobian,
    Mixout,
    Objective,
    Regularizer,
)
from smoothtune.core import regularizer, row_subset
from smoothtune.core.regularizer import Penalty
from smoothtune.core.row_subset import draw_rows, subset_pass
from smoothtune.core.terms import Terms
from smoothtune.nn import rng
from smoothtune.nn.hf_versions import enable_checkpointing, recomputes_hooks
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model
from smoothtune.testing.tiny import COMMON_CONFIG, random_model

ROWS = (1, 3)
UNSHARED = {
    "deberta",
    "opt",
}  # have masks of positions, or of tokens of all rows one after the other


@pytest.fixture
def chosen(monkeypatch):
    """Rows 1 and 3 of four are the part."""
    monkeypatch.setattr(row_subset, "draw_rows", lambda *_: torch.tensor(ROWS))


@pytest.fixture
def noise(monkeypatch):
    """Noise that depends on the place in an example alone."""

    def draws(x: Tensor) -> Tensor:
        places = torch.arange(x[0].numel(), dtype=x.dtype).view(x.shape[1:])
        return torch.sin(1.7 * places + 0.3).expand_as(x).clone()

    monkeypatch.setattr(rng, "normal_like", draws)
    monkeypatch.setattr(rng, "uniform_like", draws)
    return draws


def passes(monkeypatch) -> list[int]:
    """The number of rows of every forward from now on."""
    found: list[int] = []
    original = ForwardPass.run

    def run(self):
        if not self.has_run:
            found.append(len(self.batch["input_ids"]))
        return original(self)

    monkeypatch.setattr(ForwardPass, "run", run)
    return found


def gradient(loss: Tensor, model: nn.Module) -> list[Tensor]:
    weights = list(model.parameters())
    return [
        torch.zeros_like(w) if g is None else g
        for w, g in zip(weights, torch.autograd.grad(loss, weights, allow_unused=True), strict=True)
    ]


def test_rows_are_a_part_of_the_batch_rounded_up_and_every_choice_is_as_likely():
    torch.manual_seed(0)
    for count, fraction, expected in [(16, 0.25, 4), (5, 0.25, 2), (100, 0.07, 7), (3, 0.01, 1)]:
        rows = draw_rows(count, fraction, torch.device("cpu"))
        assert len(rows) == expected
        assert rows.tolist() == sorted(set(rows.tolist()) & set(range(count)))
    draws = [tuple(draw_rows(4, 0.5, torch.device("cpu")).tolist()) for _ in range(3000)]
    for pair in combinations(range(4), 2):  # 500 expected, with a deviation of 20
        assert 400 < draws.count(pair) < 600


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a not in UNSHARED])
def test_lnsr_is_the_equation_on_the_chosen_rows_with_their_own_masks(
    architecture, chosen, noise, monkeypatch
):
    """Both passes of the reference run over the whole batch, with the masks of the task loss."""
    with all_in_float64():
        model, batch = tiny_model(architecture, dropout=0.3), tiny_batch()
        torch.manual_seed(3)
        task = model(**batch).loss
        torch.manual_seed(3)
        clean = ForwardPass(
            model, batch, points=(0,), start=rng.get_state(torch.device("cpu"))
        ).run()
        x, mask = clean.embeddings(0), clean.mask
        z = noise(x)
        z = (
            z
            * (0.05 * x.norm(dim=-1, keepdim=True) / z.norm(dim=-1, keepdim=True))
            * mask[..., None]
        )
        moved = clean.at(z, 0, dropout="shared")
        term = torch.zeros((), dtype=torch.float64)
        for h, h_ in zip(clean.hidden_states[1:], moved.hidden_states[1:], strict=True):
            for row in ROWS:
                real = mask[row]
                distance = (h[row, real] - h_[row, real]).square().sum(-1).mean()
                term = term + distance / len(ROWS)
        expected = gradient(task + 2 * term, model)

        ran = passes(monkeypatch)
        objective = Objective(LNSR(rows=0.5, weight=2.0)).attach(model)
        torch.manual_seed(3)
        found = objective(model, batch)
        assert ran == [4, 2]  # the clean pass is the task's
        torch.testing.assert_close(found, task + 2 * term, rtol=1e-12, atol=1e-12)
        for one, other in zip(gradient(found, model), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_passes_of_a_part_have_the_same_masks(architecture, monkeypatch):
    """Nothing but the noise, which is next to nothing, is between them."""
    model, ran = tiny_model(architecture, dropout=0.3), passes(monkeypatch)
    objective = Objective(LNSR(rows=0.5, weight=1.0, noise_ratio=1e-6)).attach(model)
    for _ in range(3):
        objective(model, tiny_batch())
        assert 0 < objective.terms["loss/lnsr"] < 1e-8
    assert ran == ([4, 2, 2] if architecture in UNSHARED else [4, 2]) * 3


def test_what_r3f_smart_and_jachess_add_is_theirs_on_the_whole_batch_row_by_row(noise, monkeypatch):
    """A mean over examples is the mean of one-row parts; masks are those of the whole batch."""
    for make, runs in [
        (lambda **f: R3F(sigma=0.1, dropout="shared", weight=1.0, **f), [4, 1]),
        (lambda **f: SMART(weight=1.0, **f), [4, 1, 1, 1]),
        (lambda **f: JacHess(c=0.1, smoothness=[1.0, 2.0], weight=1.0, **f), [4, 1, 1, 1]),
    ]:
        model = tiny_model("bert", dropout=0.3)

        def term(method, row=0, model=model):
            monkeypatch.setattr(row_subset, "draw_rows", lambda *_: torch.tensor([row]))
            objective = Objective(method).attach(model)
            torch.manual_seed(3)
            objective(model, tiny_batch())
            objective.detach()
            return objective.terms[f"loss/{method.name}"]

        whole = term(make())
        ran = passes(monkeypatch)
        each = [term(make(rows=0.25), row) for row in range(4)]
        assert ran == 4 * runs
        monkeypatch.undo()
        monkeypatch.setattr(rng, "normal_like", noise)
        monkeypatch.setattr(rng, "uniform_like", noise)
        assert len({value.item() for value in each}) == 4
        torch.testing.assert_close(torch.stack(each).mean(), whole, rtol=1e-7, atol=0)


def methods_and_tasks():
    """Every method on one task, in turn; the rest are slow tests."""
    makes = [regression, question_answering, token_classification, multi_label]
    for i, method in enumerate([LNSR, R3F, SMART, JacHess, Jacobian]):
        for j, make in enumerate(makes):
            marks = () if i % len(makes) == j else pytest.mark.slow
            yield pytest.param(method, make, marks=marks)


@pytest.mark.parametrize(("method", "make"), list(methods_and_tasks()))
def test_every_task_has_the_mean_over_all_pairs(make, method, noise, monkeypatch):
    fields = {"weight": 1.0} | ({"sigma": 0.1} if method is R3F else {})
    fields |= {"smoothness": [1.0, 2.0]} if method is JacHess else {}

    def term(**more):
        model, batch = make(0.0)
        objective = Objective(method(**fields, **more)).attach(model)
        objective(model, batch)
        return objective.terms[f"loss/{method.name}"]

    whole, pairs = term(), []
    for pair in combinations(range(4), 2):
        monkeypatch.setattr(row_subset, "draw_rows", lambda *_, pair=pair: torch.tensor(pair))
        pairs.append(term(rows=0.5))
    assert len({value.item() for value in pairs}) == 6
    torch.testing.assert_close(torch.stack(pairs).mean(), whole, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("method", "items"),
    [  # fast: every method once
        pytest.param(method, items, marks=() if i == j else pytest.mark.slow)
        for i, method in enumerate([R3F, LNSR, Jacobian])
        for j, items in enumerate([None, 5.0, 40.0])
    ],
)
def test_label_tokens_of_a_language_model_have_the_mean_over_all_pairs(
    method, items, noise, monkeypatch
):
    """A sum over label tokens is divided by their number in the whole batch, or what it says."""
    batch = tiny_batch()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[2, :4] = -100
    batch |= {"labels": labels} | ({} if items is None else {"num_items_in_batch": items})
    fields = {"weight": 1.0} | ({"sigma": 0.1} if method is R3F else {})
    fields |= {"estimator": "finite_difference"} if method is Jacobian else {}

    def term(**more):
        model = random_model(LlamaForCausalLM, LlamaConfig(**COMMON_CONFIG))
        objective = Objective(method(**fields, **more)).attach(model)
        objective(model, batch)
        return objective.terms[f"loss/{method.name}"]

    with all_in_float64():
        whole, pairs = term(), []
        for pair in combinations(range(4), 2):
            monkeypatch.setattr(row_subset, "draw_rows", lambda *_, pair=pair: torch.tensor(pair))
            pairs.append(term(rows=0.5))
    # the number of tokens is float32
    torch.testing.assert_close(torch.stack(pairs).mean(), whole, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("method", "side", "architecture"),
    [
        pytest.param(R3F, "encoder", "t5", marks=pytest.mark.slow),
        pytest.param(R3F, "decoder", "mbart", marks=pytest.mark.slow),
        (R3F, "both", "bart"),
        (LNSR, "encoder", "bart"),
        pytest.param(LNSR, "decoder", "t5", marks=pytest.mark.slow),
        pytest.param(SMART, "encoder", "mbart", marks=pytest.mark.slow),
        pytest.param(SMART, "decoder", "bart", marks=pytest.mark.slow),
        (SMART, "both", "t5"),
    ],
)
def test_an_encoder_decoder_has_the_mean_over_all_pairs(
    method, side, architecture, noise, monkeypatch
):
    """With the masks of the whole batch, whose rows are of different lengths on both sides."""
    fields = {"weight": 1.0, "side": side}
    fields |= {"sigma": 0.1, "dropout": "shared"} if method is R3F else {}

    def term(**more):
        model = tiny_seq2seq(architecture, dropout=0.3)
        objective = Objective(method(**fields, **more)).attach(model)
        torch.manual_seed(3)
        objective(model, seq2seq_batch(padding=2))
        return objective.terms[f"loss/{method.name}"]

    whole, pairs, ran = term(), [], passes(monkeypatch)
    for pair in combinations(range(4), 2):
        monkeypatch.setattr(row_subset, "draw_rows", lambda *_, pair=pair: torch.tensor(pair))
        pairs.append(term(rows=0.5))
    assert ran[:2] == [4, 2]
    assert len({value.item() for value in pairs}) == 6
    torch.testing.assert_close(torch.stack(pairs).mean(), whole, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("architecture", "side"), [("t5", "decoder"), ("bart", "encoder"), ("mbart", "decoder")]
)
def test_both_passes_of_a_part_of_an_encoder_decoder_have_the_same_masks(architecture, side):
    model = tiny_seq2seq(architecture, dropout=0.3)
    objective = Objective(LNSR(rows=0.5, weight=1.0, noise_ratio=1e-6, side=side)).attach(model)
    for _ in range(3):
        objective(model, seq2seq_batch(padding=2))
        assert 0 < objective.terms["loss/lnsr"] < 1e-8


def test_fewer_label_tokens_than_one_for_every_batch_are_no_whole_one():
    batch = {"labels": torch.tensor([[1, 2]]), "num_items_in_batch": 0.5}
    assert row_subset.num_items(batch).item() == 0.5
    assert row_subset.num_items({"labels": torch.tensor([[1, -100]])}).item() == 1


@regularizer.method("holding")
class Holding(Penalty):
    """A term that holds the task loss, and does not declare that it does."""

    def loss(self, clean):
        return clean.run().loss


@pytest.mark.parametrize("again", [False, True])
def test_a_term_on_some_rows_that_holds_the_task_loss_is_refused(again, monkeypatch):
    model = tiny_model("bert")
    if again:
        monkeypatch.setattr(Holding, "loss", lambda self, clean: clean.run().at().loss)
    assert Objective(Holding()).attach(model)(model, tiny_batch()).requires_grad
    with pytest.raises(RuntimeError, match="with rows below 1 a term cannot hold the task loss"):
        Objective(Holding(rows=0.5))(model, tiny_batch())


def test_a_part_knows_the_whole():
    whole = ForwardPass(tiny_model("bert"), tiny_batch())
    part = subset_pass(whole, LNSR(rows=0.5, weight=1.0), runs=True)
    assert part is not whole
    assert part.full is whole
    assert whole.full is whole


class TestWhichPassesRun:
    def ran(self, monkeypatch, method, model=None, batch=None, *others: Regularizer):
        found = passes(monkeypatch)
        model = model or tiny_model("bert", dropout=0.1)
        objective = Objective(method, *others).attach(model)
        objective(model, tiny_batch() if batch is None else batch).backward()
        objective.detach()
        return found

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: R3F(rows=0.5, weight=1.0), [4, 2]),
            (lambda: LNSR(rows=0.25, weight=1.0), [4, 1]),
            (lambda: JacHess(rows=0.5, weight=1.0, smoothness=[1.0, 1.0]), [4, 2, 2, 2]),
            (lambda: CrossHolder(rows=0.5, weight=1.0), [4, 2, 2, 2, 2]),
            (lambda: SMART(rows=0.5, weight=1.0), [4, 2, 2, 2]),
            # a derivative of the clean pass is cheaper on the part alone
            (lambda: Jacobian(rows=0.5, weight=1.0), [2, 4]),
        ],
    )
    def test_of_a_labeled_batch(self, make, expected, monkeypatch):
        assert self.ran(monkeypatch, make()) == expected

    def test_of_a_batch_without_labels_only_the_part(self, monkeypatch):
        batch = tiny_batch()
        del batch["labels"]
        method = LNSR(rows=0.5, weight=1.0)
        assert self.ran(monkeypatch, method, batch=batch) == [2, 2]

    def test_beside_a_method_that_runs_no_clean_pass(self, monkeypatch):
        method = LNSR(rows=0.5, weight=1.0)
        found = self.ran(monkeypatch, method, None, None, FreeLB(num_steps=2))
        assert found == [4, 4, 2, 2]

    @pytest.mark.parametrize("cls", [LNSR, R3F])
    def test_with_recomputed_blocks_masks_are_not_shared(self, cls, monkeypatch):
        model = tiny_model("bert", dropout=0.1)
        if cls is LNSR and recomputes_hooks(model.bert.encoder.layer[0]):
            pytest.skip("methods in blocks need transformers 5.23")
        enable_checkpointing(model)
        method = cls(rows=0.5, weight=1.0, dropout="shared")
        assert self.ran(monkeypatch, method, model) == [4, 2, 2]

    def test_beside_mixout_which_draws_in_every_pass(self, monkeypatch):
        method = LNSR(rows=0.5, weight=1.0)
        assert self.ran(monkeypatch, method, None, None, Mixout(p=0.5)) == [4, 2, 2]

    def test_without_dropout_no_masks_are_needed(self, monkeypatch):
        model = tiny_model("bert")
        monkeypatch.setattr(Terms, "shared_masks", lambda *_: None)  # as on accelerators
        assert self.ran(monkeypatch, LNSR(rows=0.5, weight=1.0), model) == [4, 2]
        model = tiny_model("bert", dropout=0.1)
        assert self.ran(monkeypatch, LNSR(rows=0.5, weight=1.0), model)[-3:] == [4, 2, 2]
        assert self.ran(monkeypatch, R3F(rows=0.5, weight=1.0), model)[-2:] == [4, 2]

    def test_a_part_that_rounds_up_to_all_rows_is_the_batch(self, monkeypatch):
        whole, most = (LNSR(rows=rows, weight=1.0) for rows in (1.0, 0.9))
        losses = []
        for method in (whole, most):
            model = tiny_model("bert", dropout=0.1)
            torch.manual_seed(3)
            losses.append(Objective(method).attach(model)(model, tiny_batch()))
        assert torch.equal(*losses)


def after(block, change):
    """Change what a block returns, which in transformers 4 is a tuple."""

    def hook(module, args, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    block.register_forward_hook(hook)


class TestStrangeDraws:
    """What a pass over some rows could not draw as the whole one did."""

    def test_one_number_for_all_rows_is_drawn_again(self, noise, monkeypatch):
        """As layerdrop; the mean over all pairs shows that it is the same number."""

        def term(**fields):
            model = tiny_model("bert", dropout=0.3)
            after(model.bert.encoder.layer[0], lambda x: x * torch.rand([]))
            objective = Objective(LNSR(weight=1.0, **fields)).attach(model)
            torch.manual_seed(3)
            objective(model, tiny_batch())
            return objective.terms["loss/lnsr"]

        whole, pairs, ran = term(), [], passes(monkeypatch)
        for pair in combinations(range(4), 2):
            monkeypatch.setattr(row_subset, "draw_rows", lambda *_, pair=pair: torch.tensor(pair))
            pairs.append(term(rows=0.5))
        assert ran == [4, 2] * 6
        torch.testing.assert_close(torch.stack(pairs).mean(), whole, rtol=1e-7, atol=0)

    @pytest.mark.parametrize("kind", ["flattened", "transposed", "uniform", "stochastic depth"])
    def test_leave_the_part_a_clean_pass_of_its_own(self, kind, noise, chosen, monkeypatch):
        model = tiny_model("bert", dropout=0.1)
        draws = {
            "flattened": lambda x: nn.functional.dropout(x.flatten(0, 1), 0.4).view_as(x),
            "transposed": lambda x: nn.functional.dropout(x.transpose(0, 1), 0.4).transpose(0, 1),
            "uniform": lambda x: x * torch.empty_like(x).uniform_(0.5, 1.5),
            "stochastic depth": lambda x: x * torch.bernoulli(torch.full((len(x), 1, 1), 0.5)),
        }
        after(model.bert.encoder.layer[0], draws[kind])
        ran = passes(monkeypatch)
        objective = Objective(LNSR(rows=0.5, weight=1.0)).attach(model)
        objective(model, tiny_batch())
        assert ran == [4, 2, 2]

    def test_of_the_other_pass_alone_are_refused(self, chosen, monkeypatch):
        model = tiny_model("bert", dropout=0.1)
        count = []

        def draw(x):
            count.append(0)
            return x if len(count) == 1 else nn.functional.dropout(x, 0.4)

        after(model.bert.encoder.layer[0], draw)
        objective = Objective(LNSR(rows=0.5, weight=1.0)).attach(model)
        with pytest.raises(RuntimeError, match=r"mask of shape \(2, 6, 8\) .* leave rows at 1"):
            objective(model, tiny_batch())

    def test_without_shared_masks_they_are_refused(self, chosen, monkeypatch):
        monkeypatch.setattr(Terms, "shared_masks", lambda *_: None)
        model, count = tiny_model("bert"), []

        def draw(x):
            count.append(0)
            return x if len(count) == 1 else x + torch.rand(1)

        after(model.bert.encoder.layer[0], draw)
        objective = Objective(LNSR(rows=0.5, weight=1.0)).attach(model)
        with pytest.raises(RuntimeError, match="other random numbers than dropout"):
            objective(model, tiny_batch())


def test_masks_that_no_graph_holds_are_drawn_again(chosen, noise):
    """A frozen model's clean pass keeps none of its lower masks."""
    terms = []
    for frozen in (False, True):
        model = tiny_model("bert", dropout=0.3)
        model.bert.embeddings.requires_grad_(not frozen)
        model.bert.encoder.layer[0].requires_grad_(not frozen)
        objective = Objective(LNSR(rows=0.5, weight=1.0)).attach(model)
        torch.manual_seed(3)
        objective(model, tiny_batch())
        terms.append(objective.terms["loss/lnsr"])
    assert torch.equal(*terms)
