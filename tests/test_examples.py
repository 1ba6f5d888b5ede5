"""Every script in examples/ runs as it is, offline, in seconds."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
PRINTS = {
    "hf_trainer": ["loss/task", "loss/lnsr", "loss/l2_sp", "eval_loss"],
    "custom_loop": ["epoch 2", "loss/smart", "smart/cos"],
    "unlabeled": ["loss/task", "loss/jachess"],
    "question_answering": ["loss/task", "loss/smart", "exact matches: 1.00"],
    "new_method": ["loss/stable_scores", "llama: resumes"],
    "sft_trainer": ["loss/task", "loss/lnsr", "loss/r3f"],
    "sentence_transformers_trainer": ["loss/task", "loss/lnsr", "loss/r3f"],
    "plain_modules": ["LSTM", "TextCNN", "Transformer", "loss/lnsr"],
}

SENTENCES = "sentence_transformers"
# fast tests train on questions, plain modules and unlabeled rows as well; `make check` runs all
SLOW = ("question_answering", "plain_modules", "unlabeled")
NEEDS = {"sft_trainer": ("trl", None), "sentence_transformers_trainer": (SENTENCES, "6.2")}


def test_every_example_says_what_it_prints():
    assert {example.stem for example in EXAMPLES} == set(PRINTS)


@pytest.mark.filterwarnings("default")  # as in a process of its own, which `make examples` gives it
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem)
        for path in EXAMPLES
    ],
)
def test_example_runs(example, tmp_path, monkeypatch, capsys):
    if needed := NEEDS.get(example.stem):
        pytest.importorskip(*needed)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    missing = [text for text in PRINTS[example.stem] if text not in printed]
    assert not missing, printed
