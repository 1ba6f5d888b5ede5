"""Small faults in the syntax tree of a module, and the code of the functions that have them.

Faulty is the code of functions and methods, and their default values. Left alone are messages,
annotations, decorators, assertions and what runs at import.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


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
    """The value of a literal, such as a number or a tuple of names; of others, what it was."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return old
