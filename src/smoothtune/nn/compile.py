"""Blocks that are compiled in place, between the points where methods act.

A model that is compiled as a whole loses hooks that come and go. All that methods perturb and
record stands at the borders of blocks, so each block's `forward` is compiled by itself: hooks of
the block act around it, as in a model that is not compiled, and one graph serves all equal blocks.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, update_wrapper
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from smoothtune.nn.architecture import blocks, unwrap
from smoothtune.nn.model_facts import sides_of

M = TypeVar("M", bound=nn.Module)
BACKENDS = ("inductor", "aot_eager")
"""Those that recompute blocks (activation checkpointing) with the dropout masks they had."""
GRAPHS = 64  # of a class of blocks; torch's 8 may be few for modes, lengths and types
_LIMITED = "recompile_limit" in inspect.signature(torch.compile).parameters  # torch 2.13


class CompiledForward:
    """The compiled `forward` of a class of blocks; a graph that would be one too many raises.

    torch would run the block uncompiled instead, with other dropout masks than the compiled pass
    that it is to share them with.
    """

    def __init__(self, forward: Callable[..., Any], backend: str):
        update_wrapper(self, forward)  # with its signature
        compiling: Any = torch.compile  # whose typed overloads know no recompile_limit
        limit = {"recompile_limit": GRAPHS} if _LIMITED else {}
        self._compiled = compiling(forward, backend=_own(backend), fullgraph=True, **limit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the block, which is the first argument.

        Raises:
            RuntimeError: the block has been compiled too often, or torch cannot compile it.
        """
        # torch.compile has imported them
        from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported

        try:
            with _limit():
                return self._compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            raise RuntimeError(
                f"a block would be compiled more than {GRAPHS} times: what it is given changes "
                "from one call to the next; do not compile, or set torch_compile=False"
            ) from error
        except Unsupported as error:
            raise RuntimeError(
                f"torch {torch.__version__} cannot compile {type(args[0]).__name__} as one graph: "
                "use a newer torch, do not compile, or set torch_compile=False"
            ) from error


def compile_blocks(model: M, *, backend: str = "inductor") -> M:
    """Compile the transformer blocks of a model in place, so that methods work on it.

    ::

        compile_blocks(model)
        objective = Objective(LNSR()).bind(model, optimizer, len(loader))

    Weights, their names and the folder that `save_pretrained` writes stay as they are, and so does
    all outside the blocks: embeddings and head are not compiled. A block is compiled when it first
    runs, and again for evaluation, without gradients and, once, for other lengths. Copies of the
    model have compiled blocks too; those that were pickled have not.

    Backward passes of all compiled graphs then keep their buffers
    (`torch._functorch.config.donated_buffer` is set to False), for methods that need several.

    Args:
        model: an encoder, a decoder or both, with adapters or without.
        backend: of `torch.compile`: "inductor", or "aot_eager", which compiles fast and runs as
            slowly as the model does; their dropout masks differ.

    Returns:
        The same model.

    Raises:
        ValueError: the model has no list of blocks, another program has replaced a block's
            `forward`, or the backend is not verified.
    """
    if backend not in BACKENDS:
        raise ValueError(
            f"backend={backend!r} is not verified: methods work on blocks compiled by "
            f"{' or '.join(map(repr, BACKENDS))}"
        )
    bare = unwrap(model)
    targets = [block for side in sides_of(bare) for block in blocks(bare, side)]
    for block in targets:
        if "forward" in vars(block) and not is_compiled_block(block):
            raise ValueError(
                f"another program has replaced the forward of {type(block).__name__}, which would "
                "be lost: compile before it does, or do not compile"
            )
    torch._functorch.config.donated_buffer = False
    for block in targets:
        # a method, so that a copy of the block has one that is bound to the copy
        block.forward = MethodType(CompiledForward(type(block).forward, backend), block)
    return model


def uncompile_blocks(model: nn.Module) -> None:
    """Undo `compile_blocks`."""
    for module in unwrap(model).modules():
        if is_compiled_block(module):
            del module.forward


def is_compiled_block(module: nn.Module) -> bool:
    """Whether `compile_blocks` has compiled a module."""
    forward = vars(module).get("forward")
    return isinstance(getattr(forward, "__func__", None), CompiledForward)


def _limit() -> AbstractContextManager[object]:
    """The limit for the time of a call, where torch cannot be given it with the function."""
    if _LIMITED:
        return nullcontext()
    from torch._dynamo import config

    patched: AbstractContextManager[object] = config.patch(  # under the names of torch 2.6
        cache_size_limit=GRAPHS, fail_on_cache_limit_hit=True
    )
    return patched


@cache
def _own(backend: str) -> Callable[..., Any]:
    """The backend as another function: torch would take graphs that others compiled by it before.

    Their backward passes may free their buffers.
    """
    from torch._dynamo import lookup_backend

    compile_graph = lookup_backend(backend)
    return lambda graph, inputs: compile_graph(graph, inputs)
