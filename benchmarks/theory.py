"""What the papers prove, and two cheap baselines, measured on MiniLM fine-tuned on SST-2.

Plain fine-tuning, LNSR and UEGR, one seed: 320 rows, 3 epochs. Each is evaluated on 400 validation
rows, and on 64 of them what `smoothtune evaluate --smoothness` says of theory. Then two more plain
models, and the three as one. A temperature is fitted on half of the validation rows; probabilities
are judged on the other half.

    python benchmarks/theory.py --data DIR/sst2 --work DIR

`DIR/sst2` holds the task; models lie in the second DIR and are not trained twice. Writes
results/theory.json, from which `make docs` makes the tables of docs/theory.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from smoothtune.config.evaluation import Settings
from smoothtune.evaluation import parts, run
from smoothtune.evaluation.theory import lipschitz, noise_expansion
from smoothtune.evaluation.weight_gradients import weight_side
from smoothtune.results import Part

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


def theory_alone(subject):
    """What the page shows of `--smoothness`, which takes as long again for its other curves."""
    predictor, rows = subject.predictor, subject.rows()
    numbers = {
        "rows": len(rows),
        "lipschitz": lipschitz(predictor, rows),
        "sharpness": weight_side(predictor, rows)[0]["sharpness"],
    }
    return Part(numbers=numbers, curves={"expansion": noise_expansion(predictor, rows)})


def evaluate(models, out, *wanted):
    """The parts of an evaluation, made now unless it has been."""
    if not (out / "evaluation.json").exists():
        settings = Settings(
            model=str(models[0]),
            ensemble=tuple(map(str, models[1:])),
            output_dir=str(out),
            parts=wanted,
            max_eval_samples=TRAINING["max_eval_samples"],
            max_train_samples=100,
            max_diagnostic_samples=64,
        )
        parts.PARTS["smoothness"] = parts.Measurement("Smoothness", theory_alone)
        run.evaluate(settings)
    return json.loads((out / "evaluation.json").read_text())["parts"]


def calibrated(found):
    """What an evaluation says of the rows that the temperature was not fitted on."""
    numbers = found["calibration"]["numbers"]
    return {
        "score": found["metrics"]["numbers"]["metrics"]["accuracy"]["value"],
        "temperature": numbers["temperature"],
        "before": numbers["judged_rows_before"],
        "after": numbers["judged_rows_after"],
    }


def measured(found):
    """What an evaluation says of smoothness."""
    expansion = found["smoothness"]["curves"]["expansion"]
    return {
        "expansion": {"lines": expansion["series"], "numbers": expansion["numbers"]},
        "lipschitz": found["smoothness"]["numbers"]["lipschitz"],
        "sharpness": found["smoothness"]["numbers"]["sharpness"],
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
        wanted = ["calibration"] + ["smoothness"] * (seed == SMOOTHNESS_OF)
        found = evaluate([model], model.with_name(f"{model.name}-evaluation"), *wanted)
        row = {"method": method, "seed": seed, "train_score": result["train_metrics"]["accuracy"]}
        row |= calibrated(found) | (measured(found) if "smoothness" in found else {})
        content["runs"].append(row)
        RESULT.write_text(json.dumps(content, indent=1) + "\n")
    plain = [arguments.work / f"plain-{seed}" for seed in (1, 2, 3)]
    found = evaluate(plain, arguments.work / "average-evaluation", "calibration")
    content["average"] = {"method": AVERAGE} | calibrated(found)
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
