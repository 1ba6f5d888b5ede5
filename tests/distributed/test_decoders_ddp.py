"""Two gloo processes give what one process gives: causal language models, LoRA classifiers."""

import pytest
import torch

from helpers.causal import (
    LANGUAGE_TESTED,
    Texts,
    language_weights_after,
    lora_weights_after,
    tiny_language_model,
    tiny_lora,
)
from helpers.processes import on_two_processes
from helpers.training import FSDP_TESTED, Rows, collate
from smoothtune import METHODS, Objective
from smoothtune.testing import fixed_draws


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Weights after two updates of 2 processes x 2 batches x 2 examples."""
    folder = tmp_path_factory.mktemp("two")
    on_two_processes("decoder_worker.py", folder)
    return folder


@pytest.mark.parametrize("after", [language_weights_after, lora_weights_after])
@pytest.mark.parametrize("method", LANGUAGE_TESTED)
def test_two_processes_equal_one(after, method, on_two, tmp_path):
    found = torch.load(on_two / f"{after.__name__}-{method}.pt", weights_only=True)
    expected = after(tmp_path, method)
    start = after(tmp_path, method, max_steps=1)
    assert any(not torch.equal(expected[name], start[name]) for name in start)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)


def test_fsdp2_equals_one_process(tmp_path):
    on_two_processes("decoder_fsdp_worker.py", tmp_path)
    for kind, make, data in (
        ("language", lambda: tiny_language_model("opt"), Texts()),
        ("lora", tiny_lora, Rows(8)),
    ):
        for method, fields in FSDP_TESTED.items():
            found = torch.load(tmp_path / f"{kind}-{method}.pt", weights_only=True)
            model = make()
            objective = Objective(METHODS[method](**fields)).attach(model)
            with fixed_draws():
                objective(model, collate([data[i] for i in range(8)])).backward()
            graded = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            assert graded.keys() == found.keys()
            for name, gradient in graded.items():
                message = f"{kind}, {method}: {name}"
                torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-6, msg=message)
