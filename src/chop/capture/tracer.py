"""Captures a model as a graph of module-level nodes.

The model's own Python runs once in `eval()` and once in `train()`, on fake tensors with symbolic
sizes, and every torch call is written down. What cannot be written down becomes a leaf.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from chop.capture.captured import CapturedModule
from chop.capture.hf_patches import hf_capture_patches
from chop.capture.inputs import dummy_inputs, is_guessed
from chop.capture.leaves import LeafRule
from chop.capture.module_tree import check_names
from chop.capture.original import KEY, Original
from chop.capture.pytree import tree_map
from chop.capture.untraced_effects import check_initialized
from chop.errors import CaptureError, ConfigError, did_you_mean


class CaptureWarning(UserWarning):
    """A capture hides a part of the model, or differs from it in a way that is said."""


def capture(
    model: nn.Module,
    inputs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    leaves: Iterable[type[nn.Module] | str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> CapturedModule:
    """Writes a model down as a graph, without changing it; parameters are shared with the model.

    Args:
        model: any module; it keeps its mode, buffers and random state.
        inputs: example inputs by parameter name of `forward`. Of their sizes the graph keeps only
            what the model's Python tests. None: made from the model's configuration.
        input_names: which inputs become placeholders; None: all of `inputs`.
        leaves: module classes or dotted paths to keep as one node, besides torch's own layers.
        concrete_args: further arguments of `forward`, fixed at capture.
        strict: raise instead of making a leaf of what cannot be written down.

    Returns: the graph, in the model's mode.

    Raises:
        CaptureError: the model (or with `strict` any part of it) cannot be written down.
        ConfigError: a name is not a parameter of `forward` or not a submodule.

    Example:
        >>> import torch
        >>> graph = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {"input": torch.ones(3, 4)})
        >>> [node.target for node in graph.graph.nodes]
        ['input', '0', '1', 'output']
    """
    check_names(model)
    check_initialized(model)
    example = _copied(_choose_inputs(model, inputs, input_names))
    # torch's symbolic shapes cost half a second to import; `import chop` does not need them.
    from chop.capture.assemble import assemble, warning_text
    from chop.capture.fallback import Fallback
    from chop.capture.self_check import find_mismatch
    from chop.capture.side_effects import record, side_effect_notes

    fallback = Fallback(model, example, dict(concrete_args or {}), LeafRule(model, leaves), strict)
    with hf_capture_patches(model) as notes:
        recording, dry_runs = record(fallback)
        captured = assemble(fallback, recording)
        captured.record.guessed = inputs is None and is_guessed(model)
        mismatch = find_mismatch(model, captured, example, dry_runs[0]) if dry_runs else None
        called = {str(node.target) for node in captured.graph.nodes if node.op == "call_module"}
        notes += side_effect_notes(fallback, recording, dry_runs, called)
    # The patches of `model` are off again.
    vars(captured)[KEY] = Original(model, captured)
    if mismatch is not None and strict:
        raise CaptureError(
            f"the capture of {captured.record.class_name} is not the model: {mismatch}"
        )
    message = warning_text(fallback, captured, [*notes, mismatch] if mismatch else notes)
    if message:
        warnings.warn(message, CaptureWarning, stacklevel=2)
    return captured


def _copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """Copies of the caller's tensors: a model may write into its inputs."""

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return {name: tree_map(copy, value) for name, value in inputs.items()}


def _choose_inputs(
    model: nn.Module, inputs: Mapping[str, Any] | None, names: Sequence[str] | None
) -> dict[str, Any]:
    """The example inputs that become placeholders, in the order of the signature."""
    if inputs is None:
        inputs = dummy_inputs(model, names)
    parameters = inspect.signature(model.forward).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in [*inputs, *(names or ())]:
            if name not in parameters:
                raise ConfigError(
                    f"expected a parameter of {type(model).__name__}.forward, got {name!r}; "
                    f"{did_you_mean(name, parameters)}"
                )
    chosen = set(inputs if names is None else names)
    missing = chosen - inputs.keys()
    if missing:
        made = dummy_inputs(model, sorted(missing))
        inputs = {**inputs, **{name: made[name] for name in missing}}
    order = [*(name for name in parameters if name in chosen)]
    order += [name for name in inputs if name in chosen and name not in parameters]
    return {name: inputs[name] for name in order}
