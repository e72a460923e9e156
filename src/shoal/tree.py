"""Nested observations: arrays in dicts and tuples, and the same as one flat dict with names joined by "/".

Spaces nest as their observations do: of a composite space only its attribute `spaces` is used, a dict or a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tree = Any  # an array, or a dict or tuple of trees


def flatten(tree: Tree, name: str = "") -> dict[str, Any]:
    """{"name/a/0": leaf, ...}: a dict's keys and a tuple's positions joined with "/"; a bare leaf is {name: leaf}."""
    flat: dict[str, Any] = {}
    _flatten_into(flat, tree, name)
    return flat


def unflatten(flat: Mapping[str, Any], name: str = "") -> Tree:
    """The tree that `flatten(tree, name)` came from; other names in `flat` are ignored.

    A level whose keys are "0", "1", ... becomes a tuple, every other level a dict.
    """
    if name in flat:
        return flat[name]
    prefix = f"{name}/" if name else ""
    below = {key[len(prefix) :]: leaf for key, leaf in flat.items() if key.startswith(prefix)}
    if not below:
        raise KeyError(f"no entry is named {name!r} or lies under it")
    children = {child: unflatten(below, child) for child in dict.fromkeys(key.split("/", 1)[0] for key in below)}
    if all(str(position) in children for position in range(len(children))):
        return tuple(children[str(position)] for position in range(len(children)))
    return children


def leaf_spaces(space: Any, name: str = "") -> dict[str, Any]:
    """The parts of a space that hold arrays, named as `flatten` names those arrays."""
    return flatten(_parts(space), name)


def nest(space: Any, flat: Mapping[str, Any], name: str = "") -> Tree:
    """The tree of a space's shape out of entries that are named as `flatten` names them; others are ignored."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: nest(part, flat, f"{name}/{key}" if name else str(key)) for key, part in parts.items()}
    if isinstance(parts, tuple | list):
        return tuple(nest(part, flat, f"{name}/{i}" if name else str(i)) for i, part in enumerate(parts))
    return flat[name]


def leaf(tree: Tree) -> Any:
    """One of its leaves, the first."""
    while isinstance(tree, Mapping | tuple):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return tree


def is_under(key: str, name: str) -> bool:
    """Whether `flatten(tree, name)` could have given this key."""
    return key == name or key.startswith(f"{name}/")


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same tree with `function(leaf, *leaves of the others at that place)` for every leaf."""
    if isinstance(tree, Mapping):
        return {key: map(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(function, part, *(other[i] for other in others)) for i, part in enumerate(tree))
    return function(tree, *others)


def _flatten_into(flat: dict[str, Any], tree: Tree, name: str) -> None:
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            _flatten_into(flat, part, f"{name}/{key}" if name else str(key))
    elif isinstance(tree, tuple):
        for position, part in enumerate(tree):
            _flatten_into(flat, part, f"{name}/{position}" if name else str(position))
    else:
        flat[name] = tree


def _parts(space: Any) -> Tree:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: _parts(part) for key, part in parts.items()}
    if isinstance(parts, tuple | list):
        return tuple(_parts(part) for part in parts)
    return space
