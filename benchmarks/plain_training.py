"""Plain fine-tuning beside a script with the settings of transformers' run_glue example.

    python benchmarks/plain_training.py --data DIR [--rows 1920] [--rounds 3]

DIR is a folder of Parquet data sets with `sst2` and `qnli`. MiniLM is trained for one epoch of the
rows, 32 in a batch, by three programs, each in a process of its own with one thread, in turn:
run_glue as its README runs it (every row padded to 128 tokens, random order), run_glue with
`--pad_to_max_length False` (batches padded to their longest row), and `smoothtune train` (batches
of rows of similar lengths). Model, optimizer, learning rate, seed and threads are the same. Counted
are processor seconds from the first update to the last, and of the whole process with imports,
reading, tokenizing, the evaluation of 400 rows and saving; `smoothtune train` also evaluates the
training rows. Writes benchmarks/results/plain-training.json and .md.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
COLUMNS = {"sst2": ("sentence", None), "qnli": ("question", "sentence")}
PROGRAMS = {
    "run_glue": "run_glue, padded to 128",
    "run_glue_dynamic": "run_glue, padded to the longest of a batch",
    "smoothtune": "smoothtune train",
}
BATCH, RATE, LENGTH, EVALUATED = 32, 2e-5, 128, 400


def processor():
    """Seconds of all threads of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def watch(clock=processor):
    """Note the seconds of a clock at the ends of the training."""
    from transformers.trainer_callback import DefaultFlowCallback

    noted = {}

    def note(name):
        return lambda self, *args, **kwargs: noted.setdefault(name, clock()) and None

    DefaultFlowCallback.on_train_begin, DefaultFlowCallback.on_train_end = (
        note("begin"),
        note("end"),
    )
    return noted


def like_run_glue(data, task, rows, folder, seed, dynamic, cpu=True):
    """What run_glue does with these settings; returns its accuracy."""
    import numpy as np
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        default_data_collator,
        set_seed,
    )

    from smoothtune.models.load import minilm_folder

    set_seed(seed)
    files = {split: f"{data}/{task}/{split}.parquet" for split in ("train", "validation")}
    sets = load_dataset("parquet", data_files=files)
    sets = {
        "train": sets["train"].select(range(rows)),
        "validation": sets["validation"].select(range(EVALUATED)),
    }
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    first, second = COLUMNS[task]

    def tokenized(batch):
        texts = (batch[first],) if second is None else (batch[first], batch[second])
        padding = False if dynamic else "max_length"
        return tokenizer(*texts, padding=padding, max_length=LENGTH, truncation=True)

    sets = {split: each.map(tokenized, batched=True) for split, each in sets.items()}
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        learning_rate=RATE,
        num_train_epochs=1,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=cpu,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=sets["train"],
        eval_dataset=sets["validation"],
        compute_metrics=lambda p: {"accuracy": np.mean(p.predictions.argmax(1) == p.label_ids)},
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer) if dynamic else default_data_collator,
    )
    trainer.train()
    trainer.save_model()
    return float(trainer.evaluate()["eval_accuracy"])


def ours(data, task, rows, folder, seed, methods=None):
    """`smoothtune train` with these settings; returns its accuracy."""
    from smoothtune.config.run import load_config
    from smoothtune.run.train import train

    options = {
        "task": task,
        "data": str(data / task),
        "model": "minilm",
        "max_train_samples": rows,
        "max_eval_samples": EVALUATED,
        "max_seq_length": LENGTH,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "learning_rate": RATE,
        "num_train_epochs": 1,
        "seed": seed,
        "eval_strategy": "no",
        "output_dir": f"{folder}/model",
        "methods": methods or {"plain": {}},
        "cost_steps": 0,
    }
    return train(load_config(options=options))["metrics"]["accuracy"]


def child(program, data, task, rows, seed):
    """Run one program in this process and print what it took."""
    noted = watch()
    with tempfile.TemporaryDirectory() as folder:
        if program == "smoothtune":
            accuracy = ours(Path(data), task, int(rows), folder, int(seed))
        else:
            dynamic = program == "run_glue_dynamic"
            accuracy = like_run_glue(data, task, int(rows), folder, int(seed), dynamic)
    found = {"training": noted["end"] - noted["begin"], "whole": processor(), "accuracy": accuracy}
    print(json.dumps(found))


def measured(program, data, task, rows, seed):
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--child", program, str(data), task, str(rows), str(seed)]
    with tempfile.TemporaryDirectory() as cache:
        own = {"HF_DATASETS_CACHE": cache, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment = os.environ | own | {"TOKENIZERS_PARALLELISM": "false"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stdout + run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def table(content):
    """Markdown."""
    lines = ["# Plain training", "", f"`{content['command']}`", ""]
    lines += [f"{content['rows']:,} rows, medians of {content['rounds']} runs of each program.", ""]
    lines += [
        "| task | program | processor s of the updates | times smoothtune | of the whole process | "
        "times smoothtune | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in COLUMNS:
        of_task = [run for run in content["runs"] if run["task"] == task]
        by = {name: [run for run in of_task if run["program"] == name] for name in PROGRAMS}
        middle = {
            p: {k: statistics.median(r[k] for r in runs) for k in ("training", "whole")}
            for p, runs in by.items()
        }
        for program, runs in by.items():
            cells = []
            for kind in ("training", "whole"):
                taken, own = middle[program][kind], middle["smoothtune"][kind]
                cells += [f"{taken:.1f}", f"{taken / own:.2f}"]
            accuracy = statistics.mean(run["accuracy"] for run in runs)
            lines.append(f"| {task} | {PROGRAMS[program]} | {' | '.join(cells)} | {accuracy:.3f} |")
    return "\n".join(lines) + "\n"


def main():
    """Measure in turn and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1920)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    runs = []
    for seed in range(arguments.rounds):
        for task in COLUMNS:
            for program in PROGRAMS:
                found = measured(program, arguments.data, task, arguments.rows, seed)
                runs.append({"task": task, "program": program, "seed": seed} | found)
                print(runs[-1], flush=True)
    command = (
        f"python benchmarks/plain_training.py --data DIR --rows {arguments.rows} "
        f"--rounds {arguments.rounds}"
    )
    content = {"command": command, "rows": arguments.rows, "rounds": arguments.rounds, "runs": runs}
    (RESULTS / "plain-training.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "plain-training.md").write_text(table(content), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
