"""Module codec: conversion of a module tree to plain data and back, without `__init__`.

A record contains a module's class, plain attributes, parameters, buffers and children. Code is
never stored.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.captured.joined import join_in_state_dicts, joined_names
from chop.captured.layers.expert_linear import stack_in_state_dicts, stacks_transposed
from chop.captured.overrides import has_hooks, why_not_its_class
from chop.errors import CheckpointError
from chop.formats import QuantSpec
from chop.ir.ops import declaring_package, get_class_row
from chop.ir.storage.allowed import AllowList, get_reference
from chop.ir.storage.codec import Decoder, Encoder, NotPlainError
from chop.ir.storage.tensor_store import TensorStore
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import (
    PRUNE,
    warn_about_plain_weights,
    why_computed,
    with_plain_weights,
)
from chop.nn.quantized.masks import MASK, MASK_BUFFERS, zero_masked_weights
from chop.nn.quantized.state import COPIES, adopt_attributes
from chop.nn.transposed import stores_transposed, transpose_in_state_dicts
from chop.private.modules import (
    COMPILED,
    collect_flat_weights,
    compute_parametrized,
    forget_flat_weights,
    not_persistent,
    own_buffers,
    own_children,
    own_members,
    own_parameters,
    set_members,
)

BOOKKEEPING = frozenset(vars(nn.Module()))
# Attributes that layers derive from their tensors.
DERIVED = frozenset({"_flat_weights", "_flat_weight_refs", *COPIES})
Record = dict[str, Any]
MAX_DEPTH = 128
FREE_PATHS = 10_000
PATHS_PER_RECORD = 16


def encode_tree(root: nn.Module, store: TensorStore, encode: Encoder) -> list[Record]:
    """Returns one record per path, parents first; that of `root` has no class or attributes.

    Tensors are added to `store`. Hooks are code and are dropped with a warning; weights computed by
    hooks of torch are stored as plain weights.

    Raises:
        CheckpointError: if an attribute has no plain form; the message names it.
    """
    records: list[Record] = []
    seen: dict[int, str] = {}
    hooked: list[str] = []
    computed: dict[str, str | None] = {}
    for path, module in _paths(root, "", set()):
        if module is None:
            records.append({"path": path, "class": None})
        elif id(module) in seen:
            records.append({"path": path, "same_as": seen[id(module)]})
        else:
            seen[id(module)] = path
            if not parametrize.is_parametrized(module):
                reason = why_computed(module)
                module = _with_own_weights(module, reason)
                loses_mask = reason == PRUNE and not isinstance(module, QuantizedOperator)
                computed[path] = f"{reason}, no operator for its mask" if loses_mask else reason
            records.append(_encode_module(path, module, store, encode))
            if has_hooks(module):
                hooked.append(path)
    warn_about_plain_weights("export", computed)
    if hooked:
        warnings.warn(
            f"hooks are code and are not exported; modules with hooks: {', '.join(hooked)}.",
            stacklevel=4,
        )
    return records


def _with_own_weights(module: nn.Module, reason: str | None) -> nn.Module:
    """Returns a module without torch's weight hooks; a pruning mask becomes an operator's mask."""
    twin = module if reason is None else with_plain_weights(module)
    if twin is module or MASK not in own_buffers(twin):
        return twin
    row = get_class_row(type(twin))
    if row.quantized is not None:
        return row.quantized.from_float(twin, QuantSpec())
    for name in MASK_BUFFERS:
        own_buffers(twin).pop(name, None)
    return twin


def _paths(
    module: nn.Module | None, path: str, seen: set[int]
) -> Iterator[tuple[str, nn.Module | None]]:
    """Returns every path of the tree. Shared modules appear at each path, their children once."""
    yield path, module
    if module is None or id(module) in seen:
        return
    seen.add(id(module))
    for name, child in own_children(module).items():
        yield from _paths(child, f"{path}.{name}" if path else name, seen)


def _encode_module(path: str, module: nn.Module, store: TensorStore, encode: Encoder) -> Record:
    prefix = f"{path}." if path else ""
    record: Record = {"path": path}
    if path:
        record |= _class_and_attributes(path, module, encode)
    record["training"] = module.training
    parameters = own_parameters(module).items()
    buffers = own_buffers(module).items()
    if parameters:
        record["parameters"] = {
            name: None if x is None else store.add(prefix + name, x) for name, x in parameters
        }
    if buffers:
        record["buffers"] = {
            name: None if x is None else store.add(prefix + name, x) for name, x in buffers
        }
    if not_persistent(module):
        record["not_persistent"] = sorted(not_persistent(module))
    return record


def _class_and_attributes(path: str, module: nn.Module, encode: Encoder) -> Record:
    cls, record, reason = type(module), Record(), why_not_its_class(module)
    if reason is not None:
        raise CheckpointError(f"module '{path}' cannot be exported: {reason}.")
    if parametrize.is_parametrized(module):
        # torch creates a class at run time with a property per parametrized tensor.
        cls, record["parametrized"] = cls.__mro__[1], True
    attributes = {}
    for name, value in vars(module).items():
        if name in BOOKKEEPING or name in DERIVED or name == COMPILED:
            continue
        try:
            attributes[name] = encode(value)
        except NotPlainError as error:
            raise CheckpointError(
                f"module '{path}' ({cls.__name__}) cannot be exported: its attribute '{name}' is "
                f"{error}; expected numbers, text, dtypes, tensors, formats, functions that an "
                "import can find, and containers of these."
            ) from None
    package = declaring_package(cls)
    if package is not None:
        record["package"] = package
    return {"class": get_reference(cls), **record, "attributes": attributes}


def decode_tree(
    root: nn.Module,
    records: list[Record],
    tensors: Mapping[str, Tensor],
    allowed: AllowList,
    decode: Decoder,
) -> dict[str, set[str]]:
    """Fills `root` with the tree of `encode_tree`.

    Returns: module path -> names of its parameters and buffers.

    Raises:
        CheckpointError: if a class is not on the list, or paths and tensors are inconsistent.
    """
    made: dict[str, nn.Module | None] = {"": root}
    for record in records:
        path = record["path"]
        if path:
            made[path] = _decode_module(record, made, allowed, decode)
            parent, _, name = path.rpartition(".")
            owner = made.get(parent)
            if owner is None or not _is_path_step(name):
                raise CheckpointError(f"the checkpoint has a module at the invalid path {path!r}.")
            own_children(owner)[name] = made[path]
        module = made[path]
        if module is not None and "same_as" not in record:
            _add_tensors(module, record, tensors)
    _check_tree(root, len(records))
    for record in records:
        module = made[record["path"]]
        if record.get("parametrized"):
            _parametrize_again(module)
        if isinstance(module, nn.RNNBase):
            _collect_weights(module)
    present = {path: module for path, module in made.items() if module is not None}
    return {
        path: {*own_parameters(module), *own_buffers(module)} for path, module in present.items()
    }


def _check_tree(root: nn.Module, records: int) -> None:
    """Raises CheckpointError for a tree with cycles, great depth or too many paths.

    Nested sharing multiplies the number of paths, and `train` and `state_dict` visit each path.
    """
    paths: dict[int, int] = {}
    above: set[int] = set()

    def count(module: nn.Module) -> int:
        if id(module) in above or len(above) >= MAX_DEPTH:
            raise CheckpointError(
                f"the checkpoint has modules that contain themselves, or more than {MAX_DEPTH} "
                "levels of them."
            )
        if id(module) not in paths:
            above.add(id(module))
            children = (child for child in own_children(module).values() if child is not None)
            paths[id(module)] = 1 + sum(map(count, children))
            above.remove(id(module))  # `above` has only the ancestors, to detect cycles
        return paths[id(module)]

    if count(root) > FREE_PATHS + PATHS_PER_RECORD * records:
        raise CheckpointError("the checkpoint's modules share modules by too many paths.")


def _decode_module(
    record: Record, made: Mapping[str, nn.Module | None], allowed: AllowList, decode: Decoder
) -> nn.Module | None:
    if "same_as" in record:
        return made[record["same_as"]]
    if record["class"] is None:
        return None
    cls = allowed.module_class(record["class"], record.get("package"))
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    for name, plain in record["attributes"].items():
        value = decode(plain)
        # A function attribute with a method's name would be called instead of the method.
        is_method = callable(value) and callable(getattr(nn.Module, name, None))
        is_invalid = not name.isidentifier() or name in BOOKKEEPING or name.startswith("__")
        if is_invalid or is_method:
            raise CheckpointError(f"module '{record['path']}' has the invalid attribute {name!r}.")
        module.__dict__[name] = value
    if stores_transposed(module):
        transpose_in_state_dicts(module)
    if (is_transposed := stacks_transposed(module)) is not None:
        stack_in_state_dicts(module, bool(is_transposed))
    if joined := joined_names(module):
        _check_joined(joined, record["path"])
        join_in_state_dicts(module, joined)
    return module


def _check_joined(joined: Any, path: str) -> None:
    items = joined.items() if isinstance(joined, Mapping) else [(joined, None)]
    for name, parts in items:
        if not (
            isinstance(name, str) and isinstance(parts, tuple) and {*map(type, parts)} == {str}
        ):
            raise CheckpointError(f"module '{path}' joins invalid parameters: {joined!r}.")


def _add_tensors(module: nn.Module, record: Record, tensors: Mapping[str, Tensor]) -> None:
    module.training = bool(record["training"])
    homes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("parameters", own_parameters(module)),
        ("buffers", own_buffers(module)),
    )
    for kind, home in homes:
        for name, key in record.get(kind, {}).items():
            if not _is_path_step(name) or (key is not None and key not in tensors):
                raise CheckpointError(f"module '{record['path']}': tensor '{key}' is missing.")
            home[name] = None if key is None else tensors[key]
    set_members(module, not_persistent=set(record.get("not_persistent", ())))
    if isinstance(module, QuantizedOperator):
        adopt_attributes(module)
        # Files from before `weight_orig` have a dense weight in addition to its mask.
        zero_masked_weights(module)


def _collect_weights(module: Any) -> None:
    if parametrize.is_parametrized(module):
        # The next run computes the missing weights.
        forget_flat_weights(module)
    else:
        collect_flat_weights(module)


def _parametrize_again(module: Any) -> None:
    for name in module.parametrizations:
        if name in {*itertools.chain(*own_members(module)), *vars(module)}:
            raise CheckpointError(f"the checkpoint has a parametrized tensor '{name}' twice.")
    compute_parametrized(module, module.parametrizations)


def _is_path_step(name: str) -> bool:
    """Returns whether a name is safe in a dotted path, which torch.fx puts into generated code."""
    return bool(name) and name.isprintable() and not set(name) & set('"\\.')
