"""Mutation testing: small faults are put into the code, and the tests should notice each of them.

    python scripts/mutants.py --sample 300 --seed 0 core functional
    python scripts/mutants.py methods/lnsr methods/smart

mutmut leaves decorated functions alone, and here these are the context managers and properties on
which everything stands. So this program changes the code of the running function instead: a module
is imported once, its tests are collected once, and every mutant is a forked process in which one
function has other code and those tests run, quickest first, that reach it.

What a fault is stands in mutations.py.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from mutations import code_of, compiled, first_line, functions, install, mutations
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
PACKAGE, TESTS = ROOT / "src" / "smoothtune", ROOT / "tests"
RESULTS = ROOT / "build" / "mutants.jsonl"
LONGEST = 40.0  # seconds of tests a mutant is given, at most

# Beside tests/FOLDER/test_MODULE.py; of a file with [x*y] the tests whose name has x, then y.
MORE_TESTS: dict[str, list[str]] = {
    "core/attachment": ["core/test_optimizer_hooks.py"],
    "core/bound_methods": [
        *(f"core/test_{name}.py" for name in ("objective", "attachment", "optimizer_hooks")),
    ],
    "core/compute_loss": [
        "core/test_objective.py",
        "core/test_packed_rows.py",
        "core/test_row_subset.py[holds_the_task]",
    ],
    "core/forward": [
        "nn/test_dropout.py",
        "core/test_shared_masks.py",
        "core/test_row_subset.py[refused]",
        "core/test_row_subset.py[knows_the_whole]",
    ],
    "core/non_finite": ["core/test_objective.py", "trainer/test_device_reads.py"],
    "core/objective": ["core/test_optimizer_hooks.py"],
    "core/support": ["methods/test_label_smoothing.py"],
    "core/quantities": ["evaluation/test_effect.py"],
    "core/terms": [
        *(f"core/test_{name}.py" for name in ("objective", "row_subset", "shared_masks")),
        "nn/test_autocast.py",
    ],
    "core/traits": ["core/test_regularizer.py", "core/test_support.py", "nn/test_autocast.py"],
    "nn/distributed": ["nn/test_distributed_buffers.py"],
    "nn/environments": ["core/test_support.py"],
    "nn/hf_versions": ["nn/test_higher_order.py", "trainer/test_hf_versions.py"],
    "nn/dropout": ["core/test_shared_masks.py", "core/test_row_subset.py"],
    "nn/hooks": ["core/test_forward.py", "core/test_unusual_blocks.py"],
    "nn/causal_lm": [
        "nn/test_model_facts.py[another_loss]",
        "core/test_unusual_blocks.py[positions]",
        "core/test_seq2seq.py",
    ],
    "nn/model_facts": ["core/test_seq2seq.py"],
    "core/loss_sum": ["core/test_strength.py"],
    "core/regularizer": ["core/test_objective.py", "core/test_support.py"],
    "functional/divergences": [
        "functional/test_multi_label.py",
        "methods/test_r3f.py",
        *(f"methods/test_uegr.py[{part}]" for part in ("js", "forward", "spans")),
        "methods/test_alice.py[released]",
    ],
    "functional/noise": ["methods/test_lnsr.py"],
    "nn/gradients": [
        *(f"{name}.py" for name in ("nn/test_distributed", "methods/test_freelb")),
        "core/test_strength.py",
    ],
    "methods/__init__": ["methods/test_every_method.py[run_file]"],
    "methods/adversarial_base": [f"methods/test_{name}.py" for name in ("smart", "alum", "vat")],
    "methods/derivative_base": [
        f"methods/test_{name}.py" for name in ("clip", "jacobian", "jachess")
    ],
    "methods/equation": ["methods/test_describe.py"],
    "methods/alice": [
        "methods/test_every_method.py[alice]",
        "methods/test_contract.py[-alice*-bert]",
        "methods/test_users_loss.py[another_loss*subclass]",
        "methods/test_users_loss.py[of_a_loop*alice]",
    ],
    "methods/find": [],
    "methods/label_smoothing": [
        "methods/test_every_method.py[label_smoothing]",
        "methods/test_contract.py[-label_smoothing*-bert]",
        "methods/test_users_loss.py[inside_the_model]",
    ],
    "methods/sam": ["core/test_support.py[ascends]", "methods/test_contract.py[-sam*-bert]"],
    "methods/uegr": [
        "methods/test_uegr_update.py",
        "methods/test_every_method.py[uegr]",
        "methods/test_contract.py[-uegr*-bert]",
    ],
    "methods/noise_base": ["methods/test_lnsr.py", "methods/test_contract.py[-noise*-bert]"],
}


class Mutants:
    """A pytest plugin that runs the collected tests against mutants, each in its own process."""

    def __init__(self, module: str, numbers: list[int]):
        self.module, self.numbers = module, numbers
        self.path, self.source = PACKAGE / f"{module}.py", digest(module)
        self.wanted = [item.partition("[") for item in tests_of(module)]
        self.live: dict[tuple[str, int], list[types.FunctionType]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are named; of files named with a part, those that have it.

        The contract, methods times architectures, is run in named parts alone.
        """
        kept = []
        for item in items:
            file = str(item.path.relative_to(TESTS))
            parts = [part.rstrip("]") for name, _, part in self.wanted if name == file]
            product = item.name.startswith("test_contract[")
            named = any(fnmatch(item.name, f"*{part}*") and (part or not product) for part in parts)
            if named and not item.get_closest_marker("slow"):
                kept.append(item)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests reach which function, then try the mutants."""
        reached: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        gc.unfreeze()  # what tests/conftest.py has put out of sight
        for thing in gc.get_objects():
            if type(thing) is types.FunctionType:  # isinstance would wake lazy modules
                code = thing.__code__
                if code.co_filename == str(self.path) and "<" not in code.co_qualname:
                    self.live[code.co_qualname, code.co_firstlineno].append(thing)
        for seconds, index, names in in_child(lambda: self._baseline(session.items)):
            for name in names:
                reached[tuple(name)].append((seconds, index))
        for number in self.numbers:
            self._try(number, session.items, reached)
        return True

    def _baseline(self, items: list[pytest.Item]) -> list[Any]:
        """(seconds, index, functions of the module that it calls) of every test that passes."""
        tree, found = ast.parse(self.path.read_text()), []
        for function, name in functions(tree.body, ""):
            note = ast.parse(f"_reached.add({(name, first_line(function))!r})").body
            function.body[:0] = note
        module = compile(ast.fix_missing_locations(tree), str(self.path), "exec", dont_inherit=True)
        for key, live in self.live.items():
            for function in live:
                function.__code__ = code_of(module, key)
        for index, item in enumerate(items):
            builtins._reached = reached = set()  # type: ignore[attr-defined]
            start = time.perf_counter()
            if passes(item) and reached:
                found.append((time.perf_counter() - start, index, sorted(reached)))
        return found

    def _try(self, number: int, items: list, reached: dict) -> None:
        mutation, code, syntax = compiled(self.path, number)
        tests, total = [], 0.0
        for seconds, index in sorted(reached[mutation.function]):
            total += seconds
            if total > LONGEST:
                break
            tests.append(items[index])

        def attempt() -> str:
            signal.alarm(int(20 + 10 * total))  # a loop without end
            try:
                for function in self.live[mutation.function]:
                    install(function, code, syntax)
            except ValueError:  # the mutant lacks a variable of an outer scope
                return "invalid"
            return next((f"killed by {t.name}" for t in tests if not passes(t)), "survived")

        outcome = "no test" if not tests else in_child(attempt) or "killed: no answer in time"
        record = {
            "module": self.module,
            "source": self.source,
            "line": mutation.line,
            "number": number,
            "change": mutation.change,
            "outcome": outcome,
        }
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(record) + "\n")


def passes(item: pytest.Item) -> bool:
    """Run one test with its fixtures."""
    from _pytest.runner import runtestprotocol
    from _pytest.warnings import catch_warnings_for_item

    item._initrequest()
    marks = {"config": item.config, "ihook": item.ihook, "when": "runtest", "item": item}
    with catch_warnings_for_item(**marks):  # type: ignore[arg-type]
        reports = runtestprotocol(item, log=False)
    return all(report.passed or report.skipped for report in reports)


def in_child(action: Callable[[], Any]) -> Any:
    """What an action returns in a forked process; None if that process dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with os.fdopen(write, "w") as pipe:
                json.dump(action(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def tests_of(module: str) -> list[str]:
    """Test files of a module, relative to tests/, each perhaps with a part of names in [ ]."""
    folder, name = module.split("/")
    own = f"{folder}/test_{name}.py"
    of_a_method = [
        f"methods/test_every_method.py[{name}]",
        f"methods/test_contract.py[-{name}*-bert]",
    ]
    more = MORE_TESTS.get(module, of_a_method if folder == "methods" else [])
    return [own, *more] if (TESTS / own).exists() and own not in more else more


def digest(module: str) -> str:
    """Tells versions of a module's source apart."""
    return hashlib.sha256((PACKAGE / f"{module}.py").read_bytes()).hexdigest()[:12]


def run(module: str, numbers: list[int]) -> None:
    """Try mutants of one module in a process of its own."""
    child = os.fork()
    if child == 0:
        files = {str(TESTS / item.partition("[")[0]) for item in tests_of(module)}
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        status = pytest.main(
            [
                "-q",
                "--assert=plain",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-c",
                str(ROOT / "pyproject.toml"),
            ]
            + sorted(files),
            plugins=[Mutants(module, numbers)],
        )
        os._exit(int(status))
    if os.waitpid(child, 0)[1]:
        raise SystemExit(
            f"the tests of {module} could not be run: run pytest on {tests_of(module)}"
        )


def recorded() -> list[dict[str, Any]]:
    """Results of the modules as they are now."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    records = {(r["module"], r["number"]): r for r in map(json.loads, lines)}
    return [
        r for r in records.values() if exists(r["module"]) and r["source"] == digest(r["module"])
    ]


def exists(module: str) -> bool:
    """Whether there is such a module."""
    return (PACKAGE / f"{module}.py").exists()


def table(records: list[dict[str, Any]]) -> str:
    """Killed and tried by folder, then the survivors."""
    lines = ["| folder | killed | tried | share | 95% interval |", "|---|---|---|---|---|"]
    for folder in sorted({r["module"].split("/")[0] for r in records}):
        killed = [
            r["outcome"].startswith("killed") for r in records if r["module"].startswith(folder)
        ]
        low, high = binomtest(sum(killed), len(killed)).proportion_ci(method="wilson")
        share = f"{sum(killed) / len(killed):.0%} | {low:.0%} to {high:.0%}"
        lines.append(f"| {folder} | {sum(killed)} | {len(killed)} | {share} |")
    lines += ["", "Survivors:", ""]
    for r in sorted(records, key=lambda r: (r["module"], r["line"])):
        if not r["outcome"].startswith("killed"):
            change = " ".join(r["change"].split())
            lines.append(f"- {r['module']}.py:{r['line']} ({r['outcome']}) `{change}`")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Sample mutants, try those that have no result yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=["core", "nn", "functional", "methods"])
    parser.add_argument(
        "--sample", type=int, help="mutants of each argument; all of them unless given"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    parser.add_argument("--report", type=Path, help="write the table to this file")
    options = parser.parse_args()
    chosen: set[tuple[str, int]] = set()
    for name in options.modules:
        pattern = f"{name}.py" if "/" in name else f"{name}/*.py"
        pool = [
            (str(path.relative_to(PACKAGE).with_suffix("")), number)
            for path in sorted(PACKAGE.glob(pattern))
            for number, _ in enumerate(mutations(ast.parse(path.read_text())))
        ]
        size = min(options.sample or len(pool), len(pool))
        chosen |= set(random.Random(f"{options.seed}/{name}").sample(pool, size))
    done = {
        (r["module"], r["number"])
        for r in recorded()
        if not options.again or r["outcome"].startswith("killed")
    }
    import smoothtune  # noqa: F401 - once, before the processes part
    import smoothtune.testing  # noqa: F401

    todo = sorted(chosen - done)
    for module in sorted({module for module, _ in todo}):
        numbers = [number for other, number in todo if other == module]
        print(f"{module}: {len(numbers)} mutants", flush=True)
        run(module, numbers)
    tried = [r for r in recorded() if (r["module"], r["number"]) in chosen]
    text = table([r for r in tried if r["outcome"] != "invalid"])
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
