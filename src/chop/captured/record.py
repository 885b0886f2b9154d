"""Capture record: metadata of a captured module, without its graph and module tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chop.captured.guards.shape_guards import ShapeGuard
from chop.captured.huggingface.cache_names import OPTIONAL_INPUTS
from chop.captured.module_tree import member
from chop.captured.specs import LeafReport
from chop.errors import CaptureError


class CaptureWarning(UserWarning):
    """Warns that a capture hides a part of the model or differs from it."""


@dataclass
class CaptureRecord:
    """Metadata of a captured module, without its graph and module tree.

    Attributes:
        class_name: the model's class.
        config: the model's configuration, if it has one.
        example_inputs: a `TensorSpec` per captured input (nested like the input).
        optional_inputs: inputs that may be omitted: a cache, and positions.
        why_no_cache: reason why the graph takes no cache; empty if it does.
        joins_packed_rows: whether the texts of a packed row attend to each other, see
            `chop.captured.huggingface.packed_rows`.
        generation_config: settings of the model's own, if it has one.
        ignored_inputs: the model's other parameters.
        ignored_defaults: plain default values of those.
        asked: line of the model by queried tensor property, see
            `chop.captured.guards.input_guards`.
        contiguous_inputs: inputs that were contiguous.
        positional: positional parameters of the model's `forward`, in order.
        takes_any_keyword: whether the model's `forward` has a `**kwargs`.
        fixed_inputs: arguments that were fixed at capture, by name.
        guards: conditions on input sizes.
        training_guards: further conditions in `train()`, of nodes that `eval()` does not run.
        auto_leaves: reports on submodules that could not be traced.
        always_eval: submodules that the model's own `train()` leaves in `eval()`.
        eval_only: reason why `train()` is not in the graph; None if it is.
        guessed: whether the example inputs were inferred from the first layer.
        constants: buffers that hold constant tensors, which are no state of the model.
        follows_dtype: constants of the graph that follow the dtype of the model, see
            `chop.captured.dtype_constants`; None if unknown.
        node_digests: digest of target and arguments of each node, see `chop.captured.original`.
    """

    class_name: str
    config: Any = None
    example_inputs: dict[str, Any] = field(default_factory=dict)
    optional_inputs: tuple[str, ...] = ()
    why_no_cache: str = "an earlier version captured it"
    joins_packed_rows: bool = False
    generation_config: dict[str, Any] | None = None
    ignored_inputs: tuple[str, ...] = ()
    ignored_defaults: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    contiguous_inputs: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    takes_any_keyword: bool = False
    fixed_inputs: dict[str, Any] = field(default_factory=dict)
    guards: list[ShapeGuard] = field(default_factory=list)
    training_guards: list[ShapeGuard] = field(default_factory=list)
    auto_leaves: tuple[LeafReport, ...] = ()
    always_eval: tuple[str, ...] = ()
    eval_only: str | None = None
    guessed: bool = False
    constants: tuple[str, ...] = ()
    follows_dtype: dict[str, Any] | None = None
    node_digests: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Checks the types of the settings for `generate`, which may come from a file.

        Raises:
            CaptureError: an entry has another type.
        """
        kinds: dict[str, tuple[type, ...]] = {
            "class_name": (str,),
            "why_no_cache": (str,),
            "generation_config": (dict, type(None)),
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise CaptureError(f"expected {name} as {kind[0].__name__}, got {value!r}")
        if self.optional_inputs not in OPTIONAL_INPUTS:
            raise CaptureError(
                f"expected optional_inputs among {OPTIONAL_INPUTS}, got {self.optional_inputs!r}"
            )
        if bool(self.why_no_cache) == bool(self.optional_inputs):
            raise CaptureError(
                f"expected why_no_cache or optional_inputs, got {self.why_no_cache!r} and "
                f"{self.optional_inputs!r}"
            )


class RecordAttribute:
    """Descriptor for an entry of a module's record. A model's own member has priority.

    Args:
        name: name of the entry.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        value = member(module, self._name)
        if value is None:
            value = getattr(module.record, self._name)
        if value is None and self._name == "config":
            raise AttributeError("the model has no configuration")
        return value

    def __set__(self, module: Any, value: Any) -> None:
        setattr(module.record, self._name, value)
