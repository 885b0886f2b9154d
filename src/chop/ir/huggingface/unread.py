"""Handling of unexpected and missing tensors after transformers has loaded a model.

A task head may be in the model or the files only, which is a warning. Every other tensor is read or
named in an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from chop.errors import CheckpointError, enumerate_names
from chop.ir.huggingface.layers import NUMBERED, check_layers, list_extra_layers
from chop.ir.huggingface.misfits import describe_missing, format_first, other_shape
from chop.ir.huggingface.skeleton import empty_model
from chop.ir.huggingface.tools import find_tool
from chop.nn.packed.state import BUFFER_NAMES
from chop.private.modules import own_buffers, own_parameters

MOST_NAMES = 8
POOLER = re.compile(r"(^|\.)pooler\.")
"""Classes of one family may lack it, by an argument that no configuration records."""
DERIVED = re.compile(
    r"(^|\.)(position_ids|masked_bias|inv_freq|relative_position_index|num_batches_tracked)$"
)
"""Buffers that are computed or counted; releases differ in whether they store them."""
CAUSAL_MASK = re.compile(r"\.(self_)?att(entio)?n\.bias$")
"""Causal mask of old decoders, in a module without a bias for its results."""
OPERANDS = {name: operand for operand, names in BUFFER_NAMES.items() for name in names}


@dataclass(frozen=True)
class Unread:
    """Tensors in files without a place in the model, and model tensors without a file.

    Attributes:
        missing: the model's tensors that no file has.
        unexpected: tensors of files without a place, by the model's name if there is one.
        mismatched: (name, shape in the files, shape in the model) of tensors of another size.
    """

    missing: Collection[str] = ()
    unexpected: Collection[str] = ()
    mismatched: Collection[tuple[str, Any, Any]] = ()

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Unread:
        """Reads the result of `from_pretrained` with `output_loading_info`."""
        keys = ("missing_keys", "unexpected_keys", "mismatched_keys")
        return cls(*(report[key] for key in keys))

    def check(self, model: Any, where: str, has_new_head: bool = False) -> list[str]:
        """Returns warnings about heads.

        Args:
            model: loaded Hugging Face model.
            where: location of the files, for messages.
            has_new_head: True if the head may differ in size from that of the files.

        Raises:
            CheckpointError: if other tensors are missing or unexpected; the message lists them.
        """
        for key, actual, expected in [] if has_new_head else sorted(self.mismatched):
            raise other_shape(key, actual, expected, where)
        check_layers(model, self.missing, where)
        family = _Family(model)
        unexpected = {family.own_name(key) for key in self.unexpected}
        extra = list_extra_layers(model, unexpected)
        beyond = tuple(f"{path}." for path in extra)
        others = sorted(key for key in unexpected if not key.startswith(beyond))
        unread = [key for key in others if not family.is_derived(key)]
        without_place = [key for key in unread if not family.is_of_another_head(key)]
        if without_place:
            raise CheckpointError(f"{where}: {_describe_unplaced(model, without_place)}")
        missing = sorted(key for key in self.missing if not DERIVED.search(key))
        needed = [key for key in missing if not family.may_be_new(key, self)]
        if needed:
            raise describe_missing(model, needed, where)
        for key, actual, expected in sorted(self.mismatched):
            if family.is_of_body(key):
                raise CheckpointError(
                    f"{where}: the weights do not fit its config.json: '{key}' has the shape "
                    f"{[*actual]}, expected {[*expected]}."
                )
        fresh = sorted([*missing, *(key for key, *_ in self.mismatched)])
        return [*_notes(model, extra, fresh, unread)]


def _notes(model: Any, extra: list[str], fresh: list[str], unread: list[str]) -> Iterator[str]:
    if extra:
        names = enumerate_names(extra, MOST_NAMES)
        yield f"not read, its config.json has fewer layers: {names}"
    others = f"no place in a {type(model).__name__}: {enumerate_names(unread, MOST_NAMES)}"
    if fresh:
        both = f"; not used, {others}" if unread else ""
        yield f"drawn at random, not read: {enumerate_names(fresh, MOST_NAMES)}{both}"
    elif unread:
        yield f"not used, {others}"


def _describe_unplaced(model: Any, names: list[str]) -> str:
    """Describes tensors without a place in the model."""
    tool = next((x for name in names if (x := find_tool(name))), None)
    if tool is None:
        kind = type(model).__name__
        return f"the {kind} of its config.json has no place for {format_first(names)}."
    own = format_first([name for name in names if find_tool(name) == tool])
    return (
        f"the weights are codes of {tool}, such as {own}, and no quantization_config that its "
        "config.json may have says how they are decoded: fetch the config.json that the tool wrote."
    )


@dataclass(frozen=True)
class _Family:
    """Model and the other transformers classes with the same body.

    Attributes:
        model: the model.
    """

    model: Any
    _built: dict[type, nn.Module | None] = field(default_factory=dict)
    _paths: dict[type, frozenset[str]] = field(default_factory=dict)

    def own_name(self, key: str) -> str:
        """Returns the name of a file's tensor in the model, with or without the body's prefix."""
        prefix = f"{self.model.base_model_prefix}."
        names = {key: 0, f"{prefix}{key}": 1, key.removeprefix(prefix): 0}
        return max(names, key=lambda name: self._depth(name) - names[name])

    def _depth(self, key: str) -> int:
        """Counts the modules around a tensor that the model has."""
        steps = key.split(".")[:-1]
        ends = range(len(steps), 0, -1)
        return next((end for end in ends if ".".join(steps[:end]) in self._modules), 0)

    def is_derived(self, key: str) -> bool:
        """Returns whether the model computes a tensor of a file itself."""
        is_buffer = any(key == name for name, _ in self.model.named_buffers())
        parent = self._modules.get(key.rpartition(".")[0])
        has_bias = parent is not None and any(True for _ in own_parameters(parent).values())
        is_mask = CAUSAL_MASK.search(key) is not None and not has_bias
        return is_buffer or is_mask or DERIVED.search(key) is not None

    def is_of_another_head(self, key: str) -> bool:
        """Returns whether a file's tensor belongs to a head or body part that this class lacks."""
        path = key.rpartition(".")[0]
        parent = self._modules.get(path)
        if self.is_of_layer(key) or (parent is not None and _tensor_names(parent)):
            return False
        if self._saved is None:
            return True
        classes = [self._saved, *(x for x in self._siblings() if x is not self._saved)]
        return any(self._has_module(x, key) for x in classes)

    def may_be_new(self, key: str, remaining: Unread) -> bool:
        """Returns whether a missing tensor may be initialized at random, as that of a new head."""
        if self._saved not in (None, type(self.model)) and not POOLER.search(key):
            return self._plain(key) not in self._parts(self._saved)
        path = key.rpartition(".")[0]
        own = {f"{path}.{name}".lstrip(".") for name in _tensor_names(self._modules[path])}
        if own & self._stored(remaining.missing):
            return False
        is_new = self._saved is None or self.model.get_output_embeddings() is None
        return POOLER.search(key) is not None or (is_new and not self.is_of_body(key))

    def _stored(self, missing: Collection[str]) -> set[str]:
        """Returns the model's tensors that the files store under other names."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        return {*self.model.state_dict()} - {*missing} - {*tied}

    def is_of_body(self, key: str) -> bool:
        """Returns whether a tensor is part of the body, which all tasks have."""
        body = self.model.base_model
        return body is self.model or key.startswith(f"{self.model.base_model_prefix}.")

    def is_of_layer(self, key: str) -> bool:
        """Returns whether a tensor belongs to a numbered layer of the model."""
        match = NUMBERED.match(key)
        return match is not None and f"{match['list']}.{match['number']}" in self._modules

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self.model.named_modules(remove_duplicate=False))

    @cached_property
    def _saved(self) -> type | None:
        """The class that wrote the files, by config.json; None if transformers lacks it."""
        import transformers

        name = str((self.model.config.architectures or [""])[0])
        model_class = getattr(transformers, name, None)
        return model_class if isinstance(model_class, type) else None

    def _siblings(self) -> Iterable[type]:
        """Other model classes with this configuration."""
        from transformers import PreTrainedModel

        kind = type(self.model.config)
        for value in vars(sys.modules[type(self.model).__module__]).values():
            is_model = isinstance(value, type) and issubclass(value, PreTrainedModel)
            if is_model and value.config_class is kind and "forward" in vars(value):
                yield value

    def _has_module(self, cls: type, key: str) -> bool:
        """Returns whether a class has the module of a tensor, under its own name for it."""
        from chop.ir.huggingface.conversions import names_in

        made = self._made(cls)
        if made is None:
            return False
        own = self._plain(names_in(made, [key])[key])
        return (own.rpartition(".")[0] or own) in self._parts(cls)

    def _parts(self, cls: type) -> frozenset[str]:
        """Returns the paths of a class's tensors, and of the modules that contain them."""
        if cls not in self._paths:
            made = self._made(cls)
            names = [] if made is None else [self._plain(name) for name in made.state_dict()]
            parts = (name.split(".") for name in names)
            self._paths[cls] = frozenset(
                ".".join(steps[:end]) for steps in parts for end in range(1, len(steps) + 1)
            )
        return self._paths[cls]

    def _made(self, cls: type) -> nn.Module | None:
        """Builds a model of a class on the meta device."""
        if cls not in self._built:
            try:
                self._built[cls] = empty_model(cls.__name__, self.model.config)
            except Exception:  # a class that wants another configuration
                self._built[cls] = None
        return self._built[cls]

    def _plain(self, path: str) -> str:
        """Returns a path without the body's prefix; codes are named by their operand."""
        path = path.removeprefix(f"{self.model.base_model_prefix}.")
        parent, _, last = path.rpartition(".")
        return f"{parent}.{OPERANDS[last]}" if last in OPERANDS else path


def _tensor_names(module: nn.Module) -> list[str]:
    own = {**own_parameters(module), **own_buffers(module)}
    return [name for name, x in own.items() if x is not None]
