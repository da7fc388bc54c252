"""Inserts the line that couples an attention module of transformers into the source of its `forward`.

A module projects (and normalises) queries and keys, rotates them (RoPE), updates the cache, and calls an attention function.
The coupling must precede the rotation and the cache, which stores coupled keys. A coupled module is therefore an instance of a
subclass whose `forward` is the source of its class with one statement inserted before the first of these three operations:

    query_states, key_states = self.couple_heads(query_states, key_states)

The classes of transformers and other models are not changed. There are no hooks and no state between calls, so that caches,
attention backends, gradient checkpointing and compilers work as with any attention module.
"""

import ast
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..config import DynamicsConfig

ROTATION = re.compile("rot|rope")
"""Matches the names of the functions that apply RoPE: apply_rotary_pos_emb, apply_rotary_emb, ..."""
_TRANSPOSITION = re.compile(r"transpose\(1, 2\)|permute\(0, 2, 1, 3\)")


class InsertionError(Exception):
    """The source of an attention class has no position at which the line is known to be correct; the message gives the
    reason."""


class CoupledModule:
    """Methods that a coupled attention module has in addition to those of its own class."""

    uncoupled_class: type[nn.Module]
    heads_first: bool
    coupling: nn.Module
    coupling_dynamics: DynamicsConfig

    def couple_heads(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Evolves the queries and keys of the new tokens, (B, H, T, d), or (B, T, H, d) if not `heads_first`."""
        if not self.heads_first:
            return self.coupling(q, k)
        q, k = self.coupling(q.transpose(1, 2), k.transpose(1, 2))
        return q.transpose(1, 2), k.transpose(1, 2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles refer to the class of transformers, since the subclass has no importable name."""
        return _new, (self.uncoupled_class,), self.__getstate__()


def _new(kind: type[nn.Module]) -> Any:
    subclass: Any = coupled_class(kind)
    return subclass.__new__(subclass)


def coupled_class(kind: type[nn.Module]) -> type[Any]:
    """The subclass with the inserted line. Raises `InsertionError` if there is no suitable position."""
    return _subclass(kind, kind.forward)


@functools.cache
def _subclass(kind: type[nn.Module], forward: Any) -> type[Any]:
    """The coupled subclass, cached for each `forward`, because other libraries replace the `forward` of a class."""
    function = _parse(kind)
    site = find_site(function)
    site.block.insert(site.index, _statement(site))
    attributes = {
        "forward": _compile(function, forward),
        "uncoupled_class": kind,
        "heads_first": site.heads_first,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (CoupledModule, kind), attributes)


@dataclass
class Site:
    """The position of the line: before `block[index]`."""

    query: str
    key: str
    block: list[ast.stmt]
    index: int
    heads_first: bool


def find_site(function: ast.FunctionDef) -> Site:
    """The position before the first rotation, cache update or attention call, where both the query and the key exist."""
    attention: Any = next(filter(_is_attention_call, ast.walk(function)), None)
    if attention is None:
        raise InsertionError(
            "does not use transformers' attention interface, so there is no known place for the coupling"
        )
    query, key = (argument.id for argument in attention.args[1:3])
    derived = _derived_names(function, {query, key})
    found: set[str] = set()
    for block, index in _path_to_boundary(function.body, derived):
        found |= _assigned(block[:index])
        if {query, key} <= found:
            index = _before_slices(block, index, derived - {query, key})
            return Site(query, key, block, index, not _transposes(block[index:], query))
    raise InsertionError(
        f"rotates or caches {query!r} or {key!r} before both exist, so there is no known place for the coupling"
    )


def _is_attention_call(node: ast.AST) -> bool:
    """Whether a node has the form `attention_interface(self, query_states, key_states, value_states, ...)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and len(node.args) >= 4
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == "self"
        and all(isinstance(argument, ast.Name) for argument in node.args[1:3])
    )


def _derived_names(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """The query, the key, and the variables sliced from them, such as the part that RoPE rotates: `q[..., :n]`."""
    derived = set(names)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if any(isinstance(value, ast.Subscript) and getattr(value.value, "id", "") in names for value in values):
                derived |= _assigned([node])
    return derived


def _path_to_boundary(block: list[ast.stmt], names: set[str]) -> Iterator[tuple[list[ast.stmt], int]]:
    """Yields the position of the first boundary in each of the nested blocks that contain it, from the outermost inwards."""
    for index, statement in enumerate(block):
        if any(_is_boundary(node, names) for node in ast.walk(statement)):
            yield block, index
            for inner in _blocks(statement):
                if any(_is_boundary(node, names) for child in inner for node in ast.walk(child)):
                    yield from _path_to_boundary(inner, names)
                    return
            return


def _is_boundary(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    moves = bool(ROTATION.search(function)) or function == "update" or _is_attention_call(node)
    return moves and any(_used(argument) & names for argument in [*node.args, *(k.value for k in node.keywords)])


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    return [getattr(statement, name) for name in ("body", "orelse", "finalbody") if getattr(statement, name, None)]


def _before_slices(block: list[ast.stmt], index: int, slices: set[str]) -> int:
    """The index before the first slice of the query or key, since the coupling precedes slices that are rotated separately."""
    for i, statement in enumerate(block[:index]):
        if _assigned([statement]) & slices:
            return i
    return index


def _transposes(block: list[ast.stmt], query: str) -> bool:
    """Whether this block contains `query = query.transpose(1, 2)` or an equivalent."""
    return any(
        isinstance(node, ast.Assign) and query in _assigned([node]) and _TRANSPOSITION.search(ast.unparse(node.value))
        for node in itertools.chain.from_iterable(map(ast.walk, block))
    )


def _used(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _assigned(block: list[ast.stmt]) -> set[str]:
    nodes = itertools.chain.from_iterable(map(ast.walk, block))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _statement(site: Site) -> ast.stmt:
    line = f"{site.query}, {site.key} = self.couple_heads({site.query}, {site.key})"
    (statement,) = ast.parse(line).body
    for node in ast.walk(statement):  # tracebacks point to the statement after it
        ast.copy_location(node, site.block[site.index])
    return statement


def _parse(kind: type[nn.Module]) -> ast.FunctionDef:
    if kind.forward.__code__.co_freevars:
        raise InsertionError("has a forward with a closure, which cannot be compiled again")
    try:
        lines, first = inspect.getsourcelines(kind.forward)
    except (OSError, TypeError):
        raise InsertionError("has no readable source code") from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    (function,) = tree.body
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        raise InsertionError("has a decorated forward")
    return function


def _compile(function: ast.FunctionDef, original: Any) -> Any:
    """Executes the code in the module that defines the class, so that names resolve as in the original."""
    namespace: dict[str, Any] = {}
    code = compile(ast.Module([function], []), inspect.getsourcefile(original) or "<coupled>", "exec")
    exec(code, original.__globals__, namespace)
    compiled = namespace[function.name]
    compiled.__qualname__, compiled.__module__ = original.__qualname__, original.__module__
    return compiled
