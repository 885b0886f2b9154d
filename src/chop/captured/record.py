"""Record of a capture: what a captured module knows besides its graph and its module tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chop.captured.guards.shape_guards import ShapeGuard
from chop.captured.huggingface.cache_names import OPTIONAL_INPUTS
from chop.captured.module_tree import member
from chop.captured.specs import LeafReport
from chop.errors import CaptureError


class CaptureWarning(UserWarning):
    """A capture hides a part of the model, or differs from it in a way that is said."""


@dataclass
class CaptureRecord:
    """What a captured module knows besides its graph and its module tree.

    Attributes:
        class_name: the model's class.
        config: the model's configuration, if it has one.
        example_inputs: a `TensorSpec` per captured input (nested like the input).
        optional_inputs: inputs that may be left out: a cache, and positions.
        why_no_cache: why the graph takes no cache; empty if it does.
        joins_packed_rows: whether the texts of a packed row attend to each other, see
            `chop.captured.huggingface.packed_rows`.
        generation_config: what the model's own sets, if it has one.
        ignored_inputs: the model's other parameters.
        ignored_defaults: what those are where they are left out, if plain values.
        asked: the line of the model that asked for what of a tensor, see `questions`.
        contiguous_inputs: the inputs that were contiguous.
        positional: the parameters that the model's `forward` takes by position, in their order.
        takes_any_keyword: whether the model's `forward` has a `**kwargs`.
        fixed_inputs: arguments that were fixed at capture, by name.
        guards: the conditions on input sizes.
        training_guards: further ones in `train()`, of nodes that `eval()` does not run.
        auto_leaves: reports on submodules that could not be written down.
        always_eval: submodules that the model's own `train()` leaves in `eval()`.
        eval_only: why `train()` is not in the graph; None where it is.
        guessed: whether the example inputs were guessed from the first layer.
        constants: buffers that hold tensors which are no state of the model.
        follows_dtype: which constants in the graph follow the dtype of the model, see
            `chop.captured.dtype_constants.follow`; None where that is not known.
        node_digests: what each node called and with what, see `chop.captured.original`.
    """

    class_name: str
    config: Any = None
    example_inputs: dict[str, Any] = field(default_factory=dict)
    optional_inputs: tuple[str, ...] = ()
    why_no_cache: str = "it is of an earlier version"
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
        """Compares what a file gave for `generate` with what a capture notes.

        Raises:
            CaptureError: an entry is of another kind.
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
        name: of the entry.
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
