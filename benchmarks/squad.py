"""MiniLM on SQuAD: LNSR and plain fine-tuning against a script with transformers alone.

    python benchmarks/squad.py --data DIR [--folder OUT] [--way NAME ...]

DIR is a folder of Parquet data sets with `squad`, and sets in the same form to which the models are
applied as they are. All ways train on the same 2,000 questions for one epoch of the same steps, in
random order; `grouped` is plain fine-tuning in batches of similar length. Models that are there
already are not trained again. NAME is transformers, plain, grouped, or a method. Writes
benchmarks/results/squad.json and .md.
"""

import argparse
import json
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
OTHERS = (
    "squadshifts_new_wiki",
    "squadshifts_amazon",
    "mrqa_relation_extraction",
    "mrqa_duorc",
    "mrqa_race",
)
QUESTIONS, EVALUATED, SEED, LENGTH, STRIDE = 2000, 300, 42, 384, 128
SETTINGS = {
    "num_train_epochs": 1,
    "learning_rate": 3e-4,
    "per_device_train_batch_size": 16,
    "logging_steps": 25,
}


def with_smoothtune(method, data, folder):
    """A model folder as `smoothtune train` writes it."""
    from smoothtune.config.run import load_config
    from smoothtune.run.train import train

    strategy = "group_by_length" if method == "grouped" else "random"
    options = {
        "task": "squad",
        "data": str(data / "squad"),
        "seed": SEED,
        "max_train_samples": QUESTIONS,
        "max_eval_samples": EVALUATED,
        "eval_strategy": "no",
        "cost_steps": 0,
        "train_sampling_strategy": strategy,
        "output_dir": str(folder),
    }
    train(
        load_config(
            options=options | SETTINGS, methods=["plain" if method == "grouped" else method]
        )
    )


def with_transformers(data, folder):
    """A model folder as a script without smoothtune writes it, on the same questions."""
    import torch
    from datasets import Dataset, load_dataset
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from smoothtune.models.load import minilm_folder

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    torch.manual_seed(SEED)
    model = AutoModelForQuestionAnswering.from_pretrained(minilm_folder())
    raw = load_dataset("parquet", data_files=str(data / "squad" / "train.parquet"), split="train")
    features = []
    for row in raw.select(np.random.default_rng(SEED).permutation(len(raw))[:QUESTIONS]):
        encoded = tokenizer(
            row["question"],
            row["context"],
            truncation="only_second",
            max_length=LENGTH,
            stride=STRIDE,
            return_overflowing_tokens=True,
        )
        first = row["answers"]["answer_start"][0]
        last = first + len(row["answers"]["text"][0]) - 1
        for window in range(len(encoded["input_ids"])):
            start, end = (encoded.char_to_token(window, char, 1) for char in (first, last))
            inside = start is not None and end is not None
            features.append(
                {name: encoded[name][window] for name in tokenizer.model_input_names}
                | {"start_positions": start if inside else 0, "end_positions": end if inside else 0}
            )
    arguments = TrainingArguments(
        str(folder / "checkpoints"),
        seed=SEED,
        save_strategy="no",
        report_to="none",
        optim="adamw_torch_fused",
        **SETTINGS,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(features),
        data_collator=DataCollatorWithPadding(tokenizer),
    ).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scores(way, data, folder):
    """F1 and exact match with intervals on SQuAD's development questions and the other sets."""
    from smoothtune.config.evaluation import OtherData
    from smoothtune.evaluation import Settings, evaluate

    found = evaluate(
        Settings(
            model=str(folder / way),
            output_dir=str(folder / f"{way}-evaluation"),
            task="squad",
            data=str(data / "squad"),
            ood={name: OtherData(str(data / name)) for name in OTHERS},
            max_eval_samples=EVALUATED,
            max_train_samples=100,
            batch_size=16,
        )
    )["parts"]
    rows = {"squad": found["metrics"]} | {name: found[f"ood: {name}"] for name in OTHERS}
    return {
        name: part["numbers"]["metrics"]
        | {"trivial_baseline": part["numbers"].get("trivial_baseline")}
        for name, part in rows.items()
    }


def table(rows, command):
    """Markdown."""
    lines = [
        "# MiniLM on SQuAD",
        "",
        f"`{command}`",
        "",
        f"{QUESTIONS} training questions of SQuAD, one epoch, one seed; F1 on {EVALUATED} "
        "development questions of SQuAD and all of the other sets, with 95 % bootstrap intervals.",
        "",
        "| way | " + " | ".join(("squad", *OTHERS)) + " |",
        "|---|" + "---|" * (1 + len(OTHERS)),
    ]
    for row in rows:
        cells = [
            f"{part['f1']['value']:.3f} ({part['f1']['low']:.3f}-{part['f1']['high']:.3f})"
            for part in row["scores"].values()
        ]
        lines.append(f"| {row['way']} | " + " | ".join(cells) + " |")
    trivial = [part["trivial_baseline"] for part in rows[0]["scores"].values()]
    cells = ["" if value is None else f"{value:.3f}" for value in trivial]
    return "\n".join([*lines, "| best constant answer | " + " | ".join(cells) + " |"]) + "\n"


def main():
    """Train and evaluate what is missing; write after each way."""
    import torch

    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("out/squad"))
    parser.add_argument(
        "--way", action="append", help="default: transformers, plain, grouped, lnsr"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "squad.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for way in arguments.way or ("transformers", "plain", "grouped", "lnsr"):
        folder = arguments.folder / way
        if not (folder / "model.safetensors").exists():
            if way == "transformers":
                with_transformers(arguments.data, folder)
            else:
                with_smoothtune(way, arguments.data, folder)
        rows = [row for row in rows if row["way"] != way]
        rows.append({"way": way, "scores": scores(way, arguments.data, arguments.folder)})
        command = "python benchmarks/squad.py --data DIR"
        content = {"command": command, "versions": versions(), "settings": SETTINGS, "rows": rows}
        file.write_text(json.dumps(content, indent=1) + "\n")
        file.with_suffix(".md").write_text(table(rows, command))
    print(table(rows, command))


if __name__ == "__main__":
    main()
