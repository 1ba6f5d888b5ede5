"""sentence-transformers' trainer for embedding models with regularizers."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset

from helpers.literal import added, gradient
from helpers.tiny_folder import WORDS, tiny_bert
from smoothtune import L2SP, LNSR, METHODS, R3F, Jacobian, Objective, regularize
from smoothtune.core.regularizer import LossTerm
from smoothtune.testing import fixed_draws, with_weight
from smoothtune.trainer.sentence_transformers import EmbeddingLoss, stacked

pytest.importorskip(
    "sentence_transformers",
    minversion="6.2",
    reason="sentence-transformers 6.2 is not installed: pip install 'smoothtune[embeddings]'",
)
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers import SentenceTransformerTrainer as Trainer  # noqa: E402
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments  # noqa: E402
from sentence_transformers.sentence_transformer import losses, modules  # noqa: E402

LOSSES = {  # columns of texts, whether there are labels, the loss
    "MultipleNegativesRankingLoss": (2, None),
    "TripletLoss": (3, None),
    "CosineSimilarityLoss": (2, "score"),
    "CoSENTLoss": (2, "score"),
    "AnglELoss": (2, "score"),
    "ContrastiveLoss": (2, "class"),
    "OnlineContrastiveLoss": (2, "class"),
}
NO_HEAD = {"r4f": "use r3f", "reinit": "no transformers model"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


def embedder(folder, dtype=torch.float64):
    words = modules.Transformer(str(folder))
    model = SentenceTransformer(
        modules=[words, modules.Pooling(16), modules.Normalize()], device="cpu"
    )
    return model.to(dtype)


def pairs(columns=2, labels=None, count=8):
    names = ["anchor", "positive", "negative"][:columns]
    rows = []
    for i in range(count):
        texts = [" ".join(WORDS[(i + 3 * c) % 10 :][: 2 + (i + c) % 4]) for c in range(columns)]
        row = dict(zip(names, texts, strict=True))
        if labels:
            row["label"] = i / count if labels == "score" else i % 2
        rows.append(row)
    return Dataset.from_list(rows)


class MeanSquare(torch.nn.Module):
    """torch's, whose labels have 32 bits here; before 2.13 it has no gradient then."""

    def forward(self, scores, labels):
        return F.mse_loss(scores, labels.to(scores.dtype))


def trainer_of(folder, output_dir, loss="MultipleNegativesRankingLoss", *, model=None, **changes):
    columns, labels = LOSSES.get(loss, (2, None))
    model = model or embedder(folder)
    settings = {
        "output_dir": str(output_dir),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }
    options = {"loss_fct": MeanSquare()} if loss == "CosineSimilarityLoss" else {}
    return Trainer(
        model=model,
        args=Arguments(**settings | changes),
        train_dataset=pairs(columns, labels),
        loss=getattr(losses, loss)(model, **options),
    )


def batch_of(trainer):
    return next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_the_trainers_own(loss, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, loss)
    trainer.model.eval()  # without dropout, whose masks are drawn in another order
    inputs = batch_of(trainer)
    expected = trainer.compute_loss(trainer.model, dict(inputs))
    task = EmbeddingLoss(trainer, inputs)
    found, outputs = task(trainer.model, task.batch)
    assert len(outputs["sentence_embedding"]) == 8 * LOSSES[loss][0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        gradient(found, [trainer.model]), gradient(expected, [trainer.model]), rtol=1e-7, atol=1e-10
    )
    assert trainer.loss.model is trainer.model


@pytest.mark.parametrize(
    "name",
    [  # every other one; the fast tests of TRL have the others
        pytest.param(name, marks=pytest.mark.slow if number % 2 else ())
        for number, name in enumerate(sorted(METHODS))
        if name not in {"cross_holder", "label_smoothing", *NO_HEAD}
    ],
)
def test_every_method_trains_and_logs_its_terms(name, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    if METHODS[name].declared.clips_gradients:
        trainer.args.max_grad_norm = 0
    regularize(trainer, with_weight(METHODS[name]())).train()
    logs = trainer.state.log_history[0]
    assert (f"loss/{name}" in logs) == issubclass(METHODS[name], LossTerm)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    moved = zip(before, trainer.model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in moved)
    assert trainer.state.log_history[1]["loss"] > 0


def test_terms_on_a_part_of_the_batch_are_refused(folder, tmp_path):
    """Texts are compared with all others of their batch."""
    trainer = regularize(trainer_of(folder, tmp_path), METHODS["lnsr"](rows=0.5, weight=1.0))
    with pytest.raises(ValueError, match="rows below 1 does not work with SentenceTransformerTr"):
        trainer.train()


def test_divergence_is_the_squared_distance_of_the_embeddings(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    model = trainer.model.eval()
    task = EmbeddingLoss(trainer, batch_of(trainer))
    texts = {key: value for key, value in task.batch.items() if key != "labels"}
    objective = Objective(R3F(noise="normal", sigma=0.1, weight=1.0)).attach(model)
    with fixed_draws():
        objective(model, task.batch, task)
        noise = 0.1 * fixed(texts)
        with added(model.transformers_model, noise * texts["attention_mask"][..., None]):
            noisy = model(dict(texts))["sentence_embedding"]
        clean = model(dict(texts))["sentence_embedding"]
    expected = (noisy - clean).square().sum(-1).mean()
    assert expected > 1e-6
    torch.testing.assert_close(objective.terms["loss/r3f"], expected.detach())
    cosine = F.cosine_similarity(noisy, clean)  # of unit vectors
    torch.testing.assert_close(expected, 2 * (1 - cosine).mean())


def fixed(texts):
    from smoothtune.nn import rng

    return rng.normal_like(torch.zeros(*texts["input_ids"].shape, 16, dtype=torch.float64))


def test_hidden_states_are_those_of_the_transformer(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    task = EmbeddingLoss(trainer, batch_of(trainer))
    objective = Objective(LNSR(noise="in_manifold", k=3, weight=1.0)).attach(trainer.model)
    objective(trainer.model, task.batch, task).backward()
    assert objective.terms["loss/lnsr"] > 0
    assert trainer.model.transformers_model.embeddings.word_embeddings.weight.grad.any()


def test_second_derivatives_switch_attention_and_back(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    config = trainer.model.transformers_model.config
    objective = Objective(Jacobian(weight=0.01)).attach(trainer.model)
    assert config._attn_implementation == "eager"
    objective.detach()
    assert config._attn_implementation == "sdpa"


def test_accumulation_gives_the_mean_of_the_batches(folder, tmp_path):
    """In-batch negatives differ, so only a loss without them can be equal: cosine similarity."""
    weights = []
    for size in (8, 2):
        trainer = trainer_of(
            folder,
            tmp_path,
            "CosineSimilarityLoss",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
            max_steps=1,
            optim="sgd",
        )
        trainer.model.transformers_model.config.hidden_dropout_prob = 0
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        with fixed_draws():
            regularize(trainer, R3F(noise="normal", sigma=0.1, weight=1.0)).train()
        weights.append([p.detach().clone() for p in trainer.model.parameters()])
    for whole, parts in zip(*weights, strict=True):
        torch.testing.assert_close(whole, parts, rtol=0, atol=1e-7)


def test_losses_that_run_the_model_in_parts_are_refused(folder, tmp_path):
    model = embedder(folder)
    trainer = trainer_of(folder, tmp_path, model=model)
    trainer.loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    with pytest.raises(ValueError, match="exactly once for every column"):
        regularize(trainer, LNSR(weight=1.0)).train()
    assert trainer.loss.model is model


@pytest.mark.parametrize(
    ("name", "fields", "remedy"),
    [
        ("cross_holder", {}, "use r3f, smart or jacobian"),
        ("label_smoothing", {}, "use r3f, smart or jacobian"),
        ("alice", {"compat": "vat-pytorch"}, "leave compat out"),
        ("smart", {"compat": "mt-dnn"}, "leave compat out"),
        ("sift", {"compat": "deberta"}, "leave compat out"),
    ],
)
def test_what_has_no_meaning_is_refused(name, fields, remedy, folder):
    with pytest.raises(ValueError, match=f"{name} compares class scores, .*: {remedy}"):
        Objective(with_weight(METHODS[name](**fields))).attach(embedder(folder))


@pytest.mark.parametrize("name", NO_HEAD)
def test_methods_about_the_head_say_so(name, folder):
    with pytest.raises(ValueError, match=NO_HEAD[name]):
        Objective(with_weight(METHODS[name]())).attach(embedder(folder))


def test_texts_that_are_padded_on_the_left_are_refused(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    trainer.model.tokenizer.padding_side = "left"
    with pytest.raises(ValueError, match="padded on the left"):
        regularize(trainer, L2SP())


def test_columns_are_padded_to_one_length():
    short = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2)}
    long = {"input_ids": torch.tensor([[7, 8, 9]]), "attention_mask": torch.ones(1, 3)}
    found = stacked([short, long])
    assert found["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert found["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    with pytest.raises(ValueError, match="pixel_values"):
        stacked([short | {"pixel_values": torch.ones(1)}])


def cross_encoder_trainer(tmp_path, folder, **changes):
    from sentence_transformers import CrossEncoder, CrossEncoderTrainer
    from sentence_transformers.cross_encoder import CrossEncoderTrainingArguments

    torch.manual_seed(0)
    model = CrossEncoder(str(folder), num_labels=1, device="cpu")
    settings = {"use_cpu": True, "report_to": "none", "max_steps": 2, "save_strategy": "no"}
    args = CrossEncoderTrainingArguments(str(tmp_path), **settings | changes)
    rows = pairs(2, "score")
    return CrossEncoderTrainer(model=model, args=args, train_dataset=rows, eval_dataset=rows)


def test_methods_on_passes_are_refused_for_cross_encoders(tmp_path, folder):
    advice = (
        "lnsr with sentence-transformers' CrossEncoderTrainer: its losses.*such as mixout or l2_sp"
        ".*for scores.*problem_type='multi_label_classification'"
    )
    with pytest.raises(ValueError, match=advice):
        regularize(cross_encoder_trainer(tmp_path, folder), LNSR(weight=1.0), L2SP())


@pytest.mark.parametrize("name", ["plain", "l2_sp", "mixout", "child_tuning", "llrd"])
def test_methods_on_weights_train_cross_encoders(name, tmp_path, folder):
    changes = {"eval_strategy": "steps", "eval_steps": 1, "max_grad_norm": 0.0}
    weights = []
    for ours in (False, True):
        trainer = cross_encoder_trainer(tmp_path, folder, **changes)
        if ours:
            regularize(trainer, METHODS[name]())
            state = [key for key in trainer.objective.state_dict() if key.startswith("l2_sp/")]
            assert bool(state) == (name == "l2_sp")
            assert not any("classifier" in key for key in state)  # the new head is pulled to zero
        trainer.train()
        weights.append(trainer.model.state_dict())
    moved = [not torch.equal(weights[0][key], weights[1][key]) for key in weights[0]]
    assert any(moved) == (name != "plain")


def test_what_replaces_a_cross_encoder_has_its_loss(folder):
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    scores = torch.tensor([0.2, 0.9, 0.5])
    columns = [list(pairs(count=3)[name]) for name in ("anchor", "positive")]
    encoder = CrossEncoder(str(folder), num_labels=1, device="cpu").eval()
    model = AutoModelForSequenceClassification.from_pretrained(
        str(folder), num_labels=1, problem_type="multi_label_classification"
    ).eval()
    model.load_state_dict(encoder.model.state_dict())  # the new heads are random
    expected = BinaryCrossEntropyLoss(encoder)(columns, scores)

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    batch = dict(tokenizer(*columns, padding=True, return_tensors="pt"))
    objective = Objective(LNSR(weight=1.0)).attach(model)
    objective(model, batch | {"labels": scores[:, None]})
    torch.testing.assert_close(objective.terms["loss/task"], expected.detach())
    assert objective.terms["loss/lnsr"] > 0
    objective.detach()


class Decayed(losses.MultipleNegativesRankingLoss):
    """Looks at the model's weights too, which the precomputed embeddings do not have."""

    def forward(self, *args, **kwargs):
        decay = sum(weight.square().sum() for weight in self.model.parameters())
        return super().forward(*args, **kwargs) + decay


def test_a_loss_that_one_forward_does_not_give_is_refused(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path)
    trainer.loss = Decayed(trainer.model)
    with pytest.raises(ValueError, match="Decayed is .* in its trainer and .* from one forward"):
        regularize(trainer, R3F(weight=1.0)).train()


class Parts(losses.MultipleNegativesRankingLoss):
    """In two parts, which the trainer logs."""

    def forward(self, *args, **kwargs):
        whole = super().forward(*args, **kwargs)
        return {"most": 0.75 * whole, "rest": 0.25 * whole}


def test_the_parts_of_a_loss_are_logged_of_the_clean_pass(folder, tmp_path):
    """Neither the comparison before the first update nor perturbed passes are among them."""
    model = embedder(folder)
    settings = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    settings |= {"use_cpu": True, "report_to": "none", "save_strategy": "no"}
    trainer = Trainer(
        model=model,
        args=Arguments(str(tmp_path), **settings),
        train_dataset=pairs(),
        eval_dataset=pairs(),
        loss=Parts(model),
    )
    regularize(trainer, R3F(weight=0.1)).train()
    log = trainer.state.log_history
    for kind, whole, part in (("train", "loss/task", "most"), ("eval", "eval_loss", "eval_most")):
        values = [(entry[whole], entry[part]) for entry in log if whole in entry]
        assert len(values) == 2, kind
        for value, logged in values:
            assert logged == pytest.approx(0.75 * value, rel=1e-3)
