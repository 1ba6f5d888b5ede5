"""Every class that an automatic class of transformers may return, tiny: right, refused or wrong.

    python benchmarks/sweep.py [--only REGEX] [--head HEAD ...] [--methods few] [--write]

A class is made from its own configuration, shrunk, with random weights, and given a made-up batch.
Checked are the task loss against the model's own, weight 0 against plain training, halves against
the whole batch, hidden states, perturbations and causality against the model itself, and the
gradients of methods against slopes. What is done is not repeated, so the command resumes.
`--write` makes benchmarks/results/sweep.json of what has been found.
"""

import argparse
import json
import re
import signal
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

RESULT = Path(__file__).parent / "results" / "sweep.json"
FIRST = ["r3f", "lnsr", "jachess", "label_smoothing"]
FEW = [*FIRST, "smart", "mixout", "l2_sp", "freelb", "uegr"]
OTHERS = ["r3f", "l2_sp"]
"""Methods for the further classes of a model type."""


def too_slow(*_):
    """End a class that takes too long."""
    raise TimeoutError


def sweep_class(name, head, methods, done, whole, seconds):
    """What is found out about one class, or why it is left out."""
    import transformers
    from sweep_checks import check_class
    from sweep_models import LARGEST, count, make_config

    start = time.process_time()
    signal.alarm(seconds)
    record = {}
    try:
        cls = getattr(transformers, name)
        record["parameters"] = count(cls, make_config(cls, head))
        if record["parameters"] > LARGEST:
            millions = f"{record['parameters'] / 1e6:.0f} M parameters"
            return {"left out": f"too large: {millions} after shrinking"}
        record["results"] = check_class(cls, head, methods, done, whole=whole)
    except TimeoutError:
        record["left out"] = f"too slow: more than {seconds} s"
    except ImportError as error:
        record["left out"] = f"not installed: {' '.join(str(error).split())[:80]}"
    except Exception as error:
        step = "no loss" if "parameters" in record else "not built"
        text = " ".join(str(error).split())[:200]
        record["left out"] = f"{step}: {type(error).__name__}: {text}"
    finally:
        signal.alarm(0)
    return record | {"seconds": round(time.process_time() - start, 1)}


def read(file):
    """Records by class, later ones on top of earlier ones."""
    records = {}
    for line in file.read_text("utf-8").splitlines() if file.exists() else []:
        new = json.loads(line)
        old = records.get(new["class"], {})
        results = old.get("results", {}) | new.get("results", {})
        records[new["class"]] = old | new | ({"results": results} if results else {})
    return records


def write(records, command):
    """The committed result: every outcome once, and by its number the checks that had it."""
    from smoothtune.files import versions

    outcomes, rows = [], []
    for record in sorted(records.values(), key=lambda r: (r["head"], r["class"])):
        row = {k: record[k] for k in ("class", "head", "model_type", "left out") if k in record}
        for check, found in record.get("results", {}).items():
            found = found.replace(record["class"], "the model")
            if found not in outcomes:
                outcomes.append(found)
            row.setdefault("results", {}).setdefault(str(outcomes.index(found)), []).append(check)
        rows.append(row)
    content = {
        "command": command,
        "versions": versions(),
        "outcomes": outcomes,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(content, indent=1).removesuffix("\n}")
    RESULT.write_text(f'{head},\n "classes": [\n{lines}\n]}}\n', "utf-8")


def main():
    """Check what is missing in the file of results."""
    import torch
    import transformers
    from sweep_models import classes

    from smoothtune import METHODS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", action="append", help="only this one; may be repeated")
    parser.add_argument("--only", default="", help="regular expression of class names")
    parser.add_argument("--methods", choices=["first", "few", "all"], default="few")
    parser.add_argument("--file", type=Path, default=Path("out/sweep.jsonl"))
    parser.add_argument("--seconds", type=int, default=120, help="limit for one class")
    parser.add_argument("--again", default="", help="regular expression of results to repeat")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, too_slow)
    records = read(arguments.file)
    first = {"first": FIRST, "few": FEW, "all": list(METHODS)}[arguments.methods]
    seen = {}  # model type -> the class that stands for it
    for name, (head, model_type) in classes().items():
        record = records.get(name, {})
        if "left out" not in record and ("results" in record or model_type not in seen):
            seen.setdefault(model_type, name)
        if (arguments.head and head not in arguments.head) or not re.search(arguments.only, name):
            continue
        again = arguments.again and re.search(arguments.again, json.dumps(record))
        done = {} if again else record.get("results", {})
        whole = seen.get(model_type) == name
        wanted = first if whole or arguments.methods == "all" else OTHERS
        missing = [m for m in wanted if m not in done]
        if not again and ("left out" in record or not missing):
            continue
        found = sweep_class(name, head, missing, done, whole, arguments.seconds)
        if "left out" in found and seen.get(model_type) == name:
            del seen[model_type]
        found = {"class": name, "head": head, "model_type": model_type} | found
        with arguments.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        wrong = {k: v for k, v in found.get("results", {}).items() if v.startswith("wrong")}
        print(name, found.get("seconds"), found.get("left out", ""), wrong or "", flush=True)
    if arguments.write:
        command = f"python benchmarks/sweep.py --methods {arguments.methods} --write"
        write(read(arguments.file), command)


if __name__ == "__main__":
    main()
