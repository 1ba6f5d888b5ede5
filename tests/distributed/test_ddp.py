"""Two gloo processes that train give what one process gives."""

import pytest
import torch

from helpers.causal import (
    LANGUAGE_TESTED,
    NARROW_TESTED,
    language_weights_after,
    lora_weights_after,
    narrow_weights_after,
)
from helpers.processes import on_two_processes
from helpers.seq2seq import SEQ2SEQ_TESTED, seq2seq_weights_after
from helpers.training import (
    CLIPPED,
    LATE,
    METHODS_TESTED,
    UNEQUAL_TESTED,
    Rows,
    dual_weights_after,
    weights_after,
)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Folder of the weights after two updates on two processes."""
    folder = tmp_path_factory.mktemp("two")
    on_two_processes("worker.py", folder)
    return folder


def assert_equal(expected, file):
    found = torch.load(file, weights_only=True)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", METHODS_TESTED)
def test_classifiers(method, on_two, tmp_path):
    """2 processes x 16 examples, and 2 x 4 batches x 4 examples."""
    expected = weights_after(tmp_path, method, max_steps=2, data=Rows(32))
    assert_equal(expected, on_two / f"one-batch-{method}.pt")
    assert_equal(expected, on_two / f"four-batches-{method}.pt")


@pytest.mark.parametrize("method", ["lnsr", "freelb"])
def test_compiled_blocks(method, on_two, tmp_path):
    expected = weights_after(tmp_path, method, max_steps=2, data=Rows(32))
    assert_equal(expected, on_two / f"compiled-{method}.pt")


@pytest.mark.parametrize("method", UNEQUAL_TESTED)
def test_unequal_batches(method, on_two, tmp_path):
    """6 examples in one process, 2 in the other."""
    expected = weights_after(tmp_path, method, data=Rows(8))
    assert_equal(expected, on_two / f"unequal-{method}.pt")


@pytest.mark.parametrize(("name", "share"), [("share", 0.5), ("bounded", 50.0)])
def test_the_share_of_a_term_is_that_of_the_reduced_gradients(name, share, on_two, tmp_path):
    fields, data = {"share": share}, Rows(32)
    expected = weights_after(tmp_path, "lnsr", max_steps=4, data=data, fields=fields)
    fixed = weights_after(tmp_path, "lnsr", max_steps=4, data=data, fields={"weight": 1.0})
    assert any(not torch.equal(expected[name], fixed[name]) for name in fixed)
    assert_equal(expected, on_two / f"{name}-lnsr.pt")


def test_examples_are_clipped_at_the_mean_of_all_batches(on_two, tmp_path):
    expected = weights_after(tmp_path, "jacobian", max_steps=3, data=Rows(32), fields=CLIPPED)
    whole = CLIPPED | {"clip": 0}
    others = weights_after(tmp_path, "jacobian", max_steps=3, data=Rows(32), fields=whole)
    apart = [(expected[name] - others[name]).abs().max() for name in others]
    assert max(apart) > 1e-4
    assert_equal(expected, on_two / "clipped-jacobian.pt")


@pytest.mark.parametrize(("name", "fields"), [("dual", None), ("late", LATE)])
def test_unlabeled_batches(name, fields, on_two, tmp_path):
    """They do not reach the head; both processes end with the weights of one."""
    expected = dual_weights_after(
        tmp_path,
        "lnsr",
        fields,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    for file in (f"{name}-lnsr.pt", f"{name}-lnsr-1.pt"):
        assert_equal(expected, on_two / file)


def test_labeled_and_unlabeled_batches_in_one_update(on_two, tmp_path):
    """2 processes x (4 labeled rows + 4 unlabeled ones)."""
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    expected = dual_weights_after(tmp_path, "lnsr", alternate="batch", **cut)
    for file in ("both-lnsr.pt", "both-lnsr-1.pt"):
        assert_equal(expected, on_two / file)


@pytest.mark.parametrize(
    ("kind", "after"), [("language", language_weights_after), ("lora", lora_weights_after)]
)
@pytest.mark.parametrize("method", LANGUAGE_TESTED)
def test_decoders(kind, after, method, on_two, tmp_path):
    """2 processes x 2 batches x 2 examples."""
    expected = after(tmp_path, method)
    start = after(tmp_path, method, max_steps=1)
    assert any(not torch.equal(expected[name], start[name]) for name in start)
    assert_equal(expected, on_two / f"{kind}-{method}.pt")


@pytest.mark.parametrize("method", NARROW_TESTED)
def test_frozen_weights_in_16_bits(method, on_two, tmp_path):
    """2 processes x 2 batches x 2 examples, in float32 as the methods ask for it."""
    expected = narrow_weights_after(tmp_path, method)
    assert_equal(expected, on_two / f"narrow-{method}.pt")


@pytest.mark.parametrize("method", SEQ2SEQ_TESTED)
def test_encoder_decoders(method, on_two, tmp_path):
    """2 processes x 2 batches x 2 texts, whose answers differ in length."""
    assert_equal(seq2seq_weights_after(tmp_path, method), on_two / f"seq2seq-{method}.pt")
