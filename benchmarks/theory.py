"""What the papers prove, and two cheap baselines, measured on MiniLM fine-tuned on SST-2.

Plain fine-tuning, LNSR and UEGR, one seed: 320 rows, 3 epochs. Each is
evaluated by `smoothtune evaluate --smoothness --calibration` on 400 validation rows, of which
`--smoothness` takes 64. Then two more plain models, and the three as one. A temperature is fitted
on half of the validation rows; probabilities are judged on the other half.

    python benchmarks/theory.py --data DIR/sst2 --work DIR

`DIR/sst2` holds the task; models lie in the second DIR and are not trained twice. Writes
results/theory.json, from which `make docs` makes the tables of docs/theory.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "theory.json"
RUNS = [("plain", 1), ("lnsr", 1), ("uegr", 1), ("plain", 2), ("plain", 3)]
SMOOTHNESS_OF = 1
"""The seed whose models are measured in full."""
AVERAGE = "plain, average of seeds 1 to 3"
TRAINING = {
    "max_train_samples": 320,
    "max_eval_samples": 400,
    "num_train_epochs": 3,
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 16,
    "max_seq_length": 64,
}


def command(*arguments):
    """One smoothtune command; its errors end the script."""
    subprocess.run([sys.executable, "-m", "smoothtune", *map(str, arguments)], check=True)


def train(method, seed, data, folder):
    """The result of a run, trained now unless it has been."""
    out = folder / f"{method}-{seed}"
    if not (out / "result.json").exists():
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in TRAINING.items()]
        flags += ["--method", method, "--seed", seed, "--cost-steps", 0]
        command("train", "--task", "sst2", "--data", data, "--model", "minilm",
                "--output-dir", out, *flags, "--set", "eval_strategy=no")  # fmt: skip
    return json.loads((out / "result.json").read_text())


def evaluate(models, out, *parts):
    """The parts of an evaluation, made now unless it has been."""
    if not (out / "evaluation.json").exists():
        flags = ["--max-eval-samples", TRAINING["max_eval_samples"], "--max-train-samples", 100]
        flags += ["--max-diagnostic-samples", 64]
        command("evaluate", *models, "--output-dir", out, *parts, *flags)
    return json.loads((out / "evaluation.json").read_text())["parts"]


def calibrated(parts):
    """What an evaluation says of the rows that the temperature was not fitted on."""
    numbers = parts["calibration"]["numbers"]
    return {
        "score": parts["metrics"]["numbers"]["metrics"]["accuracy"]["value"],
        "temperature": numbers["temperature"],
        "before": numbers["judged_rows_before"],
        "after": numbers["judged_rows_after"],
    }


def measured(parts):
    """What an evaluation says of smoothness."""
    curves = parts["smoothness"]["curves"]
    expansion = curves["expansion"]
    return {
        "expansion": {"lines": expansion["series"], "numbers": expansion["numbers"]},
        "lipschitz": parts["smoothness"]["numbers"]["lipschitz"],
        "sharpness": parts["smoothness"]["numbers"]["sharpness"],
    }


def main():
    """Train, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    content = {"training": TRAINING, "runs": []}
    for method, seed in RUNS:
        result = train(method, seed, arguments.data, arguments.work)
        model = arguments.work / f"{method}-{seed}"
        wanted = ["--calibration"] + ["--smoothness"] * (seed == SMOOTHNESS_OF)
        parts = evaluate([model], model.with_name(f"{model.name}-evaluation"), *wanted)
        row = {"method": method, "seed": seed, "train_score": result["train_metrics"]["accuracy"]}
        row |= calibrated(parts) | (measured(parts) if "smoothness" in parts else {})
        content["runs"].append(row)
        RESULT.write_text(json.dumps(content, indent=1) + "\n")
    plain = [arguments.work / f"plain-{seed}" for seed in (1, 2, 3)]
    parts = evaluate(plain, arguments.work / "average-evaluation", "--calibration")
    content["average"] = {"method": AVERAGE} | calibrated(parts)
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
