"""Mutation testing: small faults are put into the code, and the tests should notice each of them.

    python scripts/mutants.py --sample 300 --seed 0 core functional
    python scripts/mutants.py methods/lnsr methods/smart

mutmut leaves decorated functions alone, and here these are the context managers and properties on
which everything stands. So this program changes the code of the running function instead: a module
is imported once, its tests are collected once, and every mutant is a forked process in which one
function has other code and those tests run, quickest first, that reach it.

Mutated is the code of functions and methods and their default values. Left alone are messages,
annotations, decorators, assertions and what runs at import.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
PACKAGE, TESTS = ROOT / "src" / "smoothtune", ROOT / "tests"
RESULTS = ROOT / "build" / "mutants.jsonl"
LONGEST = 40.0  # seconds of tests a mutant is given, at most

# Beside tests/FOLDER/test_MODULE.py; a file followed by [x] gives the tests whose name has x.
MORE_TESTS: dict[str, list[str]] = {
    "core/architecture": ["core/test_forward.py", "methods/test_llrd.py", "methods/test_reinit.py"],
    "core/causal_lm": ["core/test_causal_lm.py"],
    "core/hooks": ["core/test_forward.py", "core/test_causal_lm.py"],
    "core/forward": ["core/test_dropout.py", "core/test_shared_masks.py"],
    "core/dropout": ["core/test_shared_masks.py"],
    "core/objective": [
        "methods/test_contract.py[-lnsr-bert]",
        "methods/test_contract.py[-r3f-bert]",
    ],
    "core/predictions": ["core/test_causal_lm.py", "methods/test_smart.py", "methods/test_r3f.py"],
    "core/regularizer": ["core/test_objective.py", "core/test_support.py"],
    "core/rng": ["core/test_objective.py", "core/test_shared_masks.py"],
    "functional/adversarial": [
        f"methods/test_{name}.py" for name in ("pgd", "fgm", "vat", "smart", "alum", "freelb")
    ],
    "functional/divergences": [f"methods/test_{name}.py" for name in ("r3f", "smart", "alum")],
    "functional/ema_teacher": ["methods/test_smart.py", "methods/test_contract.py[-smart-bert]"],
    "functional/input_derivatives": ["methods/test_jachess.py", "methods/test_cross_holder.py"],
    "functional/noise": ["methods/test_lnsr.py", "methods/test_neftune.py"],
    "functional/parametrizations": ["methods/test_mixout.py", "methods/test_r3f.py"],
    "functional/stored_gradient": [
        "methods/test_l2_sp.py",
        "methods/test_contract.py[-l2_sp-bert]",
    ],
}


class Mutation(NamedTuple):
    """A fault: where, what it reads like, and how a syntax tree gets it."""

    function: tuple[str, int]  # qualified name and first line
    line: int
    change: str
    apply: Callable[[], None]


COMPARISONS: dict[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
METHODS = {"sum": "mean", "mean": "sum", "max": "min", "min": "max"}
REMOVED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Return, ast.Delete, ast.Continue, ast.Break)


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Every fault of a module, in the order of its lines."""
    for function, name in functions(tree.body, ""):
        first = first_line(function)
        for node in inside(function):
            for change, apply in faults(node, function):
                yield Mutation((name, first), getattr(node, "lineno", first), change, apply)


def functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions of a module and methods of its classes, with qualified names."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield node, prefix + node.name


def first_line(function: ast.FunctionDef) -> int:
    """Line of the definition, or of its first decorator."""
    return min(node.lineno for node in (function, *function.decorator_list))


def inside(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes that may be changed: no annotation, docstring, decorator, message or assertion."""
    waiting: list[ast.AST] = [function.args, *function.body]
    yield function
    while waiting:
        node = waiting.pop(0)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        yield node
        skipped = {id(getattr(node, name, None)) for name in ("annotation", "returns")}
        waiting += [
            child
            for child in ast.iter_child_nodes(node)
            if id(child) not in skipped and getattr(child, "arg", None) != "strict"  # of zip
        ]


def faults(node: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[str, Callable[[], None]]]:
    """What can be wrong with one node."""
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            for position, statement in enumerate(value):
                if removable(statement, statement is function.body[-1]):
                    yield f"removed: {ast.unparse(statement)}", replace(value, position, ast.Pass())
                elif isinstance(statement, ast.With):
                    yield from without_contexts(value, position, statement)
        if field == "test":
            negated = ast.UnaryOp(ast.Not(), value)
            yield f"not ({ast.unparse(value)})", setter(node, field, negated)
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            other = COMPARISONS[type(operator)]()
            yield changed(
                node, replace(node.ops, position, other), replace(node.ops, position, operator)
            )
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        other = OPERATORS[type(node.op)]()
        yield changed(node, setter(node, "op", other), setter(node, "op", node.op))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        other = ast.UnaryOp(ast.UAdd(), node.operand) if isinstance(node.op, ast.USub) else None
        if other is not None:
            yield f"{ast.unparse(node)} -> without sign", setter(node, "op", ast.UAdd())
    elif isinstance(node, ast.Constant):
        for wrong in constants(node.value):
            yield f"{node.value!r} -> {wrong!r}", setter(node, "value", wrong)
    elif isinstance(node, ast.Attribute) and node.attr in METHODS:
        yield changed(
            node, setter(node, "attr", METHODS[node.attr]), setter(node, "attr", node.attr)
        )


def removable(statement: ast.stmt, last: bool) -> bool:
    """Whether a statement can go without that only a name is missing."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant | ast.Yield)
    if isinstance(statement, ast.Assign):
        return all(
            isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets
        )
    return isinstance(statement, REMOVED) and not last


def without_contexts(
    body: list[ast.stmt], position: int, statement: ast.With
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The body of a `with` whose contexts give nothing."""
    if not any(item.optional_vars for item in statement.items):
        contexts = ", ".join(ast.unparse(item) for item in statement.items)
        bare = ast.If(ast.Constant(True), statement.body, [])
        yield f"without: with {contexts}", replace(body, position, bare)


def constants(value: Any) -> list[Any]:
    """Other values of the same type; none for messages."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    return [value + "_"] if isinstance(value, str) and value and " " not in value else []


def setter(node: ast.AST, field: str, value: Any) -> Callable[[], None]:
    """Set a field, when called."""
    return lambda: setattr(node, field, value)


def replace(values: list, position: int, value: Any) -> Callable[[], None]:
    """Set an item, when called."""
    return lambda: values.__setitem__(position, value)


def changed(
    node: ast.AST, apply: Callable[[], None], undo: Callable[[], None]
) -> tuple[str, Callable[[], None]]:
    """A fault with what it reads like before and after."""
    before = ast.unparse(node)
    apply()
    after = ast.unparse(node)
    undo()
    return f"{before} -> {after}", apply


def compiled(path: Path, number: int) -> tuple[Mutation, types.CodeType, ast.FunctionDef]:
    """The mutated function of one mutant: its code and its syntax."""
    tree = ast.parse(path.read_text())
    mutation = next(m for n, m in enumerate(mutations(tree)) if n == number)
    mutation.apply()
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    syntax = next(f for f, name in functions(tree.body, "") if name == mutation.function[0])
    return mutation, code_of(code, mutation.function), syntax


def code_of(module: types.CodeType, key: tuple[str, int]) -> types.CodeType:
    """Code of a function by its qualified name and first line."""
    waiting = [module]
    while (waiting[0].co_qualname, waiting[0].co_firstlineno) != key:
        waiting += [c for c in waiting.pop(0).co_consts if isinstance(c, types.CodeType)]
    return waiting[0]


def install(function: types.FunctionType, code: types.CodeType, syntax: ast.FunctionDef) -> None:
    """Give a live function the code and the default values of the mutated one."""
    function.__code__ = code
    positional, named = syntax.args.defaults, syntax.args.kw_defaults
    if function.__defaults__:
        pairs = zip(positional, function.__defaults__, strict=True)
        function.__defaults__ = tuple(_default(node, old) for node, old in pairs)
    if function.__kwdefaults__:
        for argument, node in zip(syntax.args.kwonlyargs, named, strict=True):
            if node is not None:
                old = function.__kwdefaults__[argument.arg]
                function.__kwdefaults__[argument.arg] = _default(node, old)


def _default(node: ast.expr, old: Any) -> Any:
    return node.value if isinstance(node, ast.Constant) else old


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
            named = any(part in item.name and (part or not product) for part in parts)
            if named and not item.get_closest_marker("slow"):
                kept.append(item)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests reach which function, then try the mutants."""
        reached: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
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

    item._initrequest()
    return all(report.passed or report.skipped for report in runtestprotocol(item, log=False))


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
    more = MORE_TESTS.get(module, [])
    if folder == "methods":
        more = [f"methods/test_every_method.py[{name}]", f"methods/test_contract.py[-{name}-bert]"]
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
    parser.add_argument("modules", nargs="*", default=["core", "functional", "methods"])
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
    text = table([r for r in recorded() if (r["module"], r["number"]) in chosen])
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
