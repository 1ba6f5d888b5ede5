"""Decoder classifiers of several families: padding, pooling, pairs, and the contract."""

import io
import json
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Gemma2Config,
    Gemma3TextConfig,
    MistralConfig,
    Qwen3Config,
)

from helpers.tiny_folder import DECODERS, END, tiny_decoder, tiny_pairs
from smoothtune import METHODS, ForwardPass
from smoothtune.config.run import RunConfig
from smoothtune.errors import ModelError
from smoothtune.models.load import load_base
from smoothtune.run.train import train
from smoothtune.tasks.presets import TASKS
from smoothtune.testing import contract, tiny
from smoothtune.testing.contract import Models
from smoothtune.testing.tiny import COMMON_CONFIG

ABSOLUTE = {"gpt2"}  # counts positions from the left end of the row, padding included
MORE = {
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gemma2": Gemma2Config,
}
if "gemma3_text" in DECODERS:
    MORE["gemma3"] = Gemma3TextConfig
CONTRACT = {
    "lnsr": {"reduction": "token_sum"},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "smart": {"mu": 0.0},
    "jacobian": {"weight": 1.0},
    "jachess": {"c": 0.1},
    "freelb": {},
    "mixout": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("decoders")
    tiny_pairs(root / "pairs")
    for family in DECODERS:
        tiny_decoder(root / family, family)
    return root


@pytest.fixture(scope="module", params=DECODERS)
def trained(request, folders):
    """Output folder of a run on pairs of texts."""
    config = RunConfig(
        task="rte",
        data=str(folders / "pairs"),
        model=str(folders / request.param),
        methods={"lnsr": {}, "jacobian": {}},
        output_dir=str(folders / f"{request.param}-trained"),
        max_steps=1,
        cost_steps=0,
        eval_strategy="no",
    )
    train(config, console=Console(file=io.StringIO()))
    return request.param, Path(config.output_dir)


def inputs(lengths, left, padding=0):
    generator = torch.Generator().manual_seed(0)
    size = max(lengths) + padding
    ids = torch.zeros(len(lengths), size, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        where = slice(size - length, None) if left else slice(length)
        ids[row, where] = torch.randint(1, 11, (length,), generator=generator)
        mask[row, where] = 1
    return {"input_ids": ids, "attention_mask": mask}


def test_the_saved_folder_pads_with_the_end_of_text_token(trained):
    _, folder = trained
    config = json.loads((folder / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token == END
    assert config["pad_token_id"] == tokenizer.pad_token_id == 0


@pytest.mark.parametrize("left", [False, True])
def test_the_head_reads_the_last_real_token(trained, left):
    family, folder = trained
    if left and family in ABSOLUTE:
        pytest.skip(f"{family} itself gives other logits when padding comes first")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    lengths = [7, 3, 5]
    padded = inputs(lengths, left, padding=2)
    together = model(**padded).logits
    for row in range(3):
        real = padded["attention_mask"][row].bool()
        alone = model(input_ids=padded["input_ids"][row, real][None]).logits[0]
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-5)
    run = ForwardPass(model, padded)
    pooled = run.pooled(padded["input_ids"][..., None].float())
    last = [9 if left else length for length in lengths]
    expected = [padded["input_ids"][row, end - 1].item() for row, end in enumerate(last)]
    assert pooled.squeeze(-1).tolist() == expected


@pytest.mark.parametrize("family", DECODERS)
def test_texts_that_hold_the_padding_token_are_read_to_their_end(family, folders):
    """The pad token is the end-of-text token, which may also be a text's own last token."""
    base = load_base(str(folders / family))
    assert base.tokenizer.padding_side == "right"
    model = AutoModelForSequenceClassification.from_pretrained(folders / family, pad_token_id=0)
    run = ForwardPass(
        model, {"input_ids": torch.tensor([[3, 4, 0]]), "attention_mask": torch.ones(1, 3)}
    )
    assert run.pooled(torch.arange(3.0).view(1, 3, 1)).item() == 2


def test_a_padding_token_without_an_embedding_is_named(tmp_path):
    tiny_decoder(tmp_path, "llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="padding token '<pad>' has id 11, but the model has"):
        load_base(str(tmp_path))


def test_the_end_of_text_token_stands_between_the_texts_of_a_pair(folders):
    from datasets import Dataset

    base = load_base(str(folders / "llama"))
    rows = Dataset.from_dict({"text": ["the film"], "text_pair": ["a plot"]})
    (ids,) = TASKS["rte"].rows.tokenize(rows, base.tokenizer, 32, "pairs")["input_ids"]
    assert base.tokenizer.convert_ids_to_tokens(ids) == ["the", "film", END, "a", "plot"]


def further_model(architecture, *, dropout=0.0):
    grouped = {"num_key_value_heads": 1, "head_dim": 4, "sliding_window": 32}
    settings = (
        COMMON_CONFIG | grouped | ({"sliding_window": None} if "qwen" in architecture else {})
    )
    config = MORE[architecture](**settings, num_labels=3)
    return tiny.random_model(AutoModelForSequenceClassification.from_config, config, dropout)


CLAUSES = {
    "has_right_gradient": contract.has_right_gradient,
    "ignores_padding": contract.ignores_padding,
    "is_mean_over_examples": contract.is_mean_over_examples,
}


def products():
    """Every other clause of a method, on one of the families in turn; the rest are slow tests."""
    for (i, clause), (j, name) in product(enumerate(CLAUSES), enumerate(CONTRACT)):
        for k, architecture in enumerate(MORE):
            fast = (i + j) % 2 == 0 and k == (i + j) // 2 % len(MORE)
            marks = () if fast else pytest.mark.slow
            yield pytest.param(clause, name, architecture, marks=marks)


@pytest.mark.parametrize(("clause", "name", "architecture"), list(products()))
def test_contract_on_further_families(clause, name, architecture):
    make = partial(METHODS[name], **CONTRACT[name])
    CLAUSES[clause](make, architecture, Models(further_model, left_padded=MORE))
