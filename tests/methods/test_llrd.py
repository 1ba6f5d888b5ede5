"""Layer-wise learning-rate decay."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BloomConfig,
    DebertaV2Config,
    ElectraConfig,
    OPTConfig,
    RemBertConfig,
    TrainerCallback,
    get_linear_schedule_with_warmup,
)

from helpers.training import Rows, arguments
from smoothtune import LLRD, Objective, SmoothTrainer
from smoothtune.testing import tiny_batch, tiny_model
from smoothtune.trainer.trainer import save_checkpoint


def rates(model, optimizer):
    """Learning rate of every parameter, by name."""
    rate = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: rate[p] for name, p in model.named_parameters()}


def bound(architecture="bert", decay=0.5, **options):
    model = tiny_model(architecture)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    objective = Objective(LLRD(decay=decay)).bind(model, optimizer)
    return model, optimizer, objective


EXPECTED = {
    "bert": {
        "bert.embeddings.word_embeddings.weight": 0.125,
        "bert.embeddings.LayerNorm.bias": 0.125,
        "bert.encoder.layer.0.output.dense.weight": 0.25,
        "bert.encoder.layer.1.output.LayerNorm.bias": 0.5,
        "bert.pooler.dense.weight": 1.0,
        "classifier.weight": 1.0,
    },
    "opt": {
        "model.decoder.embed_tokens.weight": 0.125,
        "model.decoder.embed_positions.weight": 0.125,
        "model.decoder.layers.0.fc1.weight": 0.25,
        "model.decoder.layers.1.fc1.weight": 0.5,
        "model.decoder.final_layer_norm.weight": 1.0,
        "score.weight": 1.0,
    },
    "llama": {
        "model.embed_tokens.weight": 0.125,
        "model.layers.0.mlp.up_proj.weight": 0.25,
        "model.layers.1.mlp.up_proj.weight": 0.5,
        "model.norm.weight": 1.0,
    },
    "gpt2": {"transformer.wpe.weight": 0.125, "transformer.h.1.mlp.c_fc.weight": 0.5},
    "modernbert": {"model.embeddings.norm.weight": 0.125, "model.final_norm.weight": 1.0},
    "deberta": {"deberta.embeddings.LayerNorm.weight": 0.125, "pooler.dense.weight": 1.0},
}


@pytest.mark.parametrize("architecture", EXPECTED)
def test_rates_fall_from_the_head_to_the_embeddings(architecture):
    model, optimizer, _ = bound(architecture)
    found = rates(model, optimizer)
    assert set(found.values()) == {0.125, 0.25, 0.5, 1.0}
    for name, expected in EXPECTED[architecture].items():
        assert found[name] == expected, name


def test_a_projection_of_the_embeddings_is_as_slow_as_they_are():
    """What stands beside the blocks and comes before them: 0.5 for each block, and one more."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 40}
    electra = ElectraConfig(**sizes, embedding_size=4, intermediate_size=8)
    opt = OPTConfig(**sizes, word_embed_proj_dim=4, ffn_dim=8, pad_token_id=1)
    rembert = RemBertConfig(**sizes, input_embedding_size=4, intermediate_size=8)
    beside = {
        "embeddings_project": electra,
        "project_in": opt,
        "embedding_hidden_mapping_in": rembert,
        "word_embeddings_layernorm": BloomConfig(**sizes),
    }
    for below, config in beside.items():
        model = AutoModelForSequenceClassification.from_config(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        Objective(LLRD(decay=0.5)).bind(model, optimizer)
        found = {rate for name, rate in rates(model, optimizer).items() if below in name}
        assert found == {0.125}


def test_debertas_relative_positions_and_convolution_are_as_slow_as_its_embeddings():
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 40}
    relative = {"relative_attention": True, "pos_att_type": ["p2c"], "position_buckets": 4}
    config = DebertaV2Config(
        **sizes, **relative, intermediate_size=8, norm_rel_ebd="layer_norm", conv_kernel_size=3
    )
    model = AutoModelForSequenceClassification.from_config(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Objective(LLRD(decay=0.5)).bind(model, optimizer)
    found = rates(model, optimizer)
    beside = [n for n in found if n.startswith("deberta.encoder.") and ".layer." not in n]
    assert len(beside) == 7
    assert {found[name] for name in beside} == {0.125}


def test_the_new_head_alone_has_its_factor():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Objective(LLRD(decay=0.5, head=10)).bind(model, optimizer)
    by_name = rates(model, optimizer)
    assert by_name["classifier.weight"] == by_name["classifier.bias"] == 10
    assert by_name["bert.pooler.dense.weight"] == 1
    assert by_name["bert.encoder.layer.1.output.LayerNorm.bias"] == 0.5


def test_all_blocks_may_learn_alike():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Objective(LLRD(decay=1, head=10)).bind(model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [1, 10]


def test_a_step_is_shorter_by_the_rate():
    model, optimizer, objective = bound()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objective(model, tiny_batch()).backward()
    optimizer.step()
    for name, rate in rates(model, optimizer).items():
        p = model.get_parameter(name)
        torch.testing.assert_close(before[name] - p.detach(), rate * p.grad)


def test_a_scheduler_made_afterwards_scales_every_group():
    model, optimizer, _ = bound()
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 4)
    first = rates(model, optimizer)
    optimizer.step()
    scheduler.step()
    assert rates(model, optimizer) == {name: 0.75 * rate for name, rate in first.items()}


def test_other_options_of_the_groups_stay_and_detach_restores_them():
    model = tiny_model("bert")
    plain = [p for name, p in model.named_parameters() if name.endswith("bias")]
    decayed = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": 0.1, "lr": 2.0}, {"params": plain}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.0)
    before = list(optimizer.param_groups)
    objective = Objective(LLRD(decay=0.5)).bind(model, optimizer)
    for group in optimizer.param_groups:
        ids = {id(p) for p in group["params"]}
        biases = ids <= {id(p) for p in plain}
        assert group["weight_decay"] == (0.0 if biases else 0.1)
    assert rates(model, optimizer)["classifier.weight"] == 2.0
    assert rates(model, optimizer)["classifier.bias"] == 1.0
    objective.detach()
    assert all(a is b for a, b in zip(optimizer.param_groups, before, strict=True))


def test_bound_again_it_goes_on_with_the_rates_of_the_schedule():
    model, optimizer, objective = bound()
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 4)
    first = rates(model, optimizer)
    for left in (0.75, 0.5):
        optimizer.step()
        scheduler.step()
        objective.detach()
        objective.bind(model, optimizer)
        assert rates(model, optimizer) == {name: left * rate for name, rate in first.items()}


@pytest.mark.parametrize("change", ["rate", "weights", "optimizer"])
def test_groups_that_are_others_by_now_are_split_anew(change):
    model, optimizer, objective = bound()
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 4)
    optimizer.step()
    scheduler.step()
    groups, (whole,) = optimizer.param_groups, objective.regularizers["llrd"]._groups
    objective.detach()
    if change == "rate":
        groups[0]["lr"] = 2.0
    elif change == "weights":
        groups[0]["params"].reverse()
    else:  # which takes the very dict of the first
        optimizer = torch.optim.SGD([whole])
    objective.bind(model, optimizer)
    found = rates(model, optimizer)
    expected = 2.0 if change == "rate" else 1.0
    assert found["classifier.weight"] == expected
    assert found["bert.embeddings.word_embeddings.weight"] == expected / 8


class StopsAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **objects):
        control.should_training_stop |= state.global_step == self.step


def test_a_checkpoint_after_a_training_that_was_stopped_holds_the_rates_of_the_schedule(tmp_path):
    def trainer(*callbacks):
        changes = {"max_steps": 4, "lr_scheduler_type": "linear", "logging_steps": 1}
        return SmoothTrainer(
            model=tiny_model("bert", dtype=torch.float32),
            args=arguments(tmp_path, learning_rate=0.1, **changes),
            train_dataset=Rows(128),
            regularizers=[LLRD()],
            callbacks=list(callbacks),
        )

    stopped, resumed, whole = trainer(StopsAt(2)), trainer(), trainer()
    stopped.train()
    save_checkpoint(stopped)
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_in_a_trainer_the_schedule_scales_every_rate(tmp_path):
    model = tiny_model("bert", dtype=torch.float32)
    settings = arguments(tmp_path, max_steps=4, learning_rate=1.0, lr_scheduler_type="linear")
    trainer = SmoothTrainer(
        model=model, args=settings, train_dataset=Rows(), regularizers=[LLRD(decay=0.5)]
    )
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    first = rates(model, trainer.optimizer)
    assert {name: first[name] for name in EXPECTED["bert"]} == EXPECTED["bert"]
    trainer.optimizer.step()
    trainer.lr_scheduler.step()
    assert rates(model, trainer.optimizer) == {name: 0.75 * r for name, r in first.items()}
    trainer.train()


def test_refused_after_a_scheduler():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    get_linear_schedule_with_warmup(optimizer, 0, 4)
    with pytest.raises(ValueError, match="make the scheduler after"):
        Objective(LLRD()).bind(model, optimizer)


def test_refused_without_a_learning_rate_or_with_foreign_parameters():
    model, other = tiny_model("bert"), tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="lr=None"):
        Objective(LLRD()).bind(model, optimizer)
    with pytest.raises(ValueError, match="do not belong to the model"):
        Objective(LLRD()).bind(model, torch.optim.SGD(other.parameters(), lr=1.0))
