"""Two gloo processes that train give what one process gives."""

import pytest
import torch

from helpers.causal import language_weights_after, lora_weights_after, narrow_weights_after
from helpers.ddp import cases, is_fast, train_on_two_processes
from helpers.seq2seq import seq2seq_weights_after
from helpers.training import CLIPPED, LATE, Rows, dual_weights_after, weights_after


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The file of the weights of a run on two processes, by its name and method."""
    folders = {}

    def file_of(name, method, end=""):
        fast = is_fast(name, method)
        if fast not in folders:
            folders[fast] = tmp_path_factory.mktemp("two")
            train_on_two_processes(folders[fast], fast=fast)
        return folders[fast] / f"{name}-{method}{end}.pt"

    return file_of


def assert_equal(expected, file):
    found = torch.load(file, weights_only=True)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(("cut", "method"), cases("one-batch", "four-batches"))
def test_classifiers(cut, method, on_two, tmp_path):
    """2 processes x 16 examples, and 2 x 4 batches x 4 examples."""
    expected = weights_after(tmp_path, method, max_steps=2, data=Rows(32))
    assert_equal(expected, on_two(cut, method))


@pytest.mark.parametrize(("name", "method"), cases("compiled"))
def test_compiled_blocks(name, method, on_two, tmp_path):
    expected = weights_after(tmp_path, method, max_steps=2, data=Rows(32))
    assert_equal(expected, on_two(name, method))


@pytest.mark.parametrize(("name", "method"), cases("unequal"))
def test_unequal_batches(name, method, on_two, tmp_path):
    """6 examples in one process, 2 in the other."""
    expected = weights_after(tmp_path, method, data=Rows(8))
    assert_equal(expected, on_two(name, method))


@pytest.mark.parametrize(("name", "share"), [("share", 0.5), ("bounded", 50.0)])
def test_the_share_of_a_term_is_that_of_the_reduced_gradients(name, share, on_two, tmp_path):
    fields, data = {"share": share}, Rows(32)
    expected = weights_after(tmp_path, "lnsr", max_steps=4, data=data, fields=fields)
    fixed = weights_after(tmp_path, "lnsr", max_steps=4, data=data, fields={"weight": 1.0})
    assert any(not torch.equal(expected[name], fixed[name]) for name in fixed)
    assert_equal(expected, on_two(name, "lnsr"))


def test_examples_are_clipped_at_the_mean_of_all_batches(on_two, tmp_path):
    expected = weights_after(tmp_path, "jacobian", max_steps=3, data=Rows(32), fields=CLIPPED)
    whole = CLIPPED | {"clip": 0}
    others = weights_after(tmp_path, "jacobian", max_steps=3, data=Rows(32), fields=whole)
    apart = [(expected[name] - others[name]).abs().max() for name in others]
    assert max(apart) > 1e-4
    assert_equal(expected, on_two("clipped", "jacobian"))


@pytest.mark.parametrize(("name", "method"), cases("dual", "late"))
def test_unlabeled_batches(name, method, on_two, tmp_path):
    """They do not reach the head; both processes end with the weights of one."""
    expected = dual_weights_after(
        tmp_path,
        method,
        LATE if name == "late" else None,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    for end in ("", "-1"):
        assert_equal(expected, on_two(name, method, end))


def test_labeled_and_unlabeled_batches_in_one_update(on_two, tmp_path):
    """2 processes x (4 labeled rows + 4 unlabeled ones)."""
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    expected = dual_weights_after(tmp_path, "lnsr", alternate="batch", **cut)
    for end in ("", "-1"):
        assert_equal(expected, on_two("both", "lnsr", end))


@pytest.mark.parametrize(("kind", "method"), cases("language", "lora"))
def test_decoders(kind, method, on_two, tmp_path):
    """2 processes x 2 batches x 2 examples."""
    after = {"language": language_weights_after, "lora": lora_weights_after}[kind]
    expected = after(tmp_path, method)
    start = after(tmp_path, method, max_steps=1)
    assert any(not torch.equal(expected[name], start[name]) for name in start)
    assert_equal(expected, on_two(kind, method))


@pytest.mark.parametrize(("name", "method"), cases("narrow"))
def test_frozen_weights_in_16_bits(name, method, on_two, tmp_path):
    """2 processes x 2 batches x 2 examples, in float32 as the methods ask for it."""
    expected = narrow_weights_after(tmp_path, method)
    assert_equal(expected, on_two(name, method))


@pytest.mark.parametrize(("name", "method"), cases("seq2seq"))
def test_encoder_decoders(name, method, on_two, tmp_path):
    """2 processes x 2 batches x 2 texts, whose answers differ in length."""
    assert_equal(seq2seq_weights_after(tmp_path, method), on_two(name, method))
