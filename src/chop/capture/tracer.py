"""Tracer: captures a model as a graph of module-level nodes.

The model's own Python runs once in `eval()` and once in `train()`, on fake tensors with symbolic
sizes, and every torch call becomes a node. Parts that cannot be traced become leaves.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.base.nested import tree_map
from chop.capture.huggingface.patches import hf_capture_patches
from chop.capture.inputs import check_are_complete, check_parameters, dummy_inputs, is_guessed
from chop.capture.recording.source import definition_line
from chop.capture.recording.untraced_effects import check_initialized
from chop.capture.tensor_kinds import check_kinds
from chop.captured.guards.input_guards import ORDER
from chop.captured.guards.shape_guards import compile_guard, guard_holds
from chop.captured.huggingface.cache import (
    PAST,
    CacheError,
    Caching,
    cached_example,
    copied,
    why_no_cache,
)
from chop.captured.huggingface.cache_names import (
    OPTIONAL,
    cache_name,
    names_without_cache,
    requests_cache,
)
from chop.captured.huggingface.packed_rows import joins_packed_rows
from chop.captured.layers.transformers_of_torch import has_single_operators, single_operators
from chop.captured.leaves import LeafRule
from chop.captured.module import CapturedModule
from chop.captured.module_tree import check_names
from chop.captured.nodes.generated_code import check_input_names
from chop.captured.original import KEY, Original, recorded_modules
from chop.captured.padding.hidden import disable_propagation
from chop.captured.record import CaptureWarning
from chop.captured.state import outer_values
from chop.captured.state.outer_values import OuterValues
from chop.captured.state.python_state import Key
from chop.captured.wrappers import check_has_python, unwrapped
from chop.errors import CaptureError, ConfigError, GuardError

if TYPE_CHECKING:
    from chop.capture.fallback import Fallback


def capture(
    model: nn.Module,
    inputs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    leaves: Iterable[type[nn.Module] | str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> CapturedModule:
    """Captures a model as a graph that shares its parameters; the model is not changed.

    Args:
        model: any module. Its mode, buffers and random state are restored. Wrappers of
            `torch.compile` and data parallelism are removed.
        inputs: example inputs by parameter name of `forward`. The graph fixes only those sizes that
            the model's Python tests. Default: made from the model's configuration.
        input_names: inputs that become placeholders. Default: all of `inputs`. With `cache` or
            `past_key_values`, and by default for a decoder of `input_ids` and `attention_mask`, the
            graph takes a key-value cache, see `chop.captured.huggingface.cache`.
        leaves: module classes or dotted paths to keep as one node, like torch's own layers.
        concrete_args: further arguments of `forward`, fixed at capture.
        strict: raise instead of keeping parts that cannot be traced as leaves.

    Returns: the graph, in the model's mode.

    Raises:
        CaptureError: the model (or with `strict` any part of it) cannot be captured.
        ConfigError: a name is not a parameter of `forward` or not a submodule, or every input is
            fixed.

    Example:
        >>> import torch
        >>> graph = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {"input": torch.ones(3, 4)})
        >>> [node.target for node in graph.graph.nodes]
        ['input', '0', '1', 'output']
    """
    model = unwrapped(model)
    check_has_python(model)
    check_names(model)
    check_initialized(model)
    asked = requests_cache(model, (*(inputs or ()), *(input_names or ())))
    names = names_without_cache(input_names) if asked else input_names
    if inputs is not None and asked:
        inputs = {name: value for name, value in inputs.items() if name not in OPTIONAL}
    job = _Job(model, dict(concrete_args or {}), tuple(leaves), strict)
    example = _copy_inputs(_remove_fixed(model, _choose_inputs(model, inputs, names), job.fixed))
    check_are_complete(model, {*example, *job.fixed})
    check_input_names(example)
    check_kinds(model, example)
    named = input_names is not None and not asked
    why_not = f"hf_input_names has no {cache_name(model)}, as by default" if named else ""
    if not (asked or named):
        why_not = why_no_cache(model, example, job.fixed)
    captured = None
    if not why_not:
        try:
            captured = job.run_with_cache(example)
        except CaptureError as error:
            if asked:
                raise
            # A cache that was not requested is optional: a graph without one is captured instead.
            why_not = str(error)
        except Exception as error:  # raised by the model, with a cache only
            why_not = f"it fails with one ({type(error).__name__}: {error})"
            if asked:
                raise CacheError(f"{type(model).__name__} and a cache: {why_not}") from error
    captured = job.run(example) if captured is None else captured
    captured.record.guessed = inputs is None and is_guessed(model)
    captured.record.why_no_cache = why_not
    if input_names is not None:
        # Explicit input names define the graph's own signature.
        captured.record.positional = ()
    if job.message:
        warnings.warn(job.message, CaptureWarning, stacklevel=2)
    return captured


@dataclass
class _Job:
    """One capture: the arguments of `capture`, its warning, and the changed attributes."""

    model: nn.Module
    fixed: dict[str, Any]
    leaves: tuple[type[nn.Module] | str, ...]
    strict: bool
    message: str | None = None
    changed: set[Key] = field(default_factory=set)

    def run_with_cache(self, plain: Mapping[str, Any]) -> CapturedModule:
        """Returns a graph for calls with and without a key-value cache.

        Raises:
            CaptureError: the graph would differ from the model.
        """
        example, caching = cached_example(self.model, plain)
        fixed, self.fixed = self.fixed, {**self.fixed, "use_cache": True}
        try:
            captured = self.run(example, caching)
        finally:
            self.fixed = fixed
        if captured.record.auto_leaves or captured.record.eval_only is not None:
            raise CacheError("some parts of the model cannot be traced")
        _check_one_token(captured)
        return captured

    def run(self, example: dict[str, Any], caching: Caching | None = None) -> CapturedModule:
        """Returns a graph of these inputs."""
        # torch's symbolic shapes cost half a second to import; `import chop` does not need them.
        from chop.private.symbolic_shapes import forget_shapes

        try:
            with disable_propagation():
                return self._run(example, caching)
        finally:
            forget_shapes()

    def _run(self, example: dict[str, Any], caching: Caching | None) -> CapturedModule:
        from chop.capture.assemble import warning_text
        from chop.capture.checks.self_check import find_difference
        from chop.capture.fallback import Fallback

        rule = LeafRule(self.model, self.leaves)
        with single_operators(self.model, rule.is_chosen) as model:
            fallback = Fallback(model, example, self.fixed, rule, self.strict, caching=caching)
            joins = joins_packed_rows(model, example, self.fixed)
            with hf_capture_patches(model, caching is not None, joins) as notes:
                captured, more = self._recorded(fallback, model)
            captured.record.joins_packed_rows = joins
            # Outside of the patches, so that they do not become part of the original.
            vars(captured)[KEY] = Original(model, captured)
            swapped = has_single_operators(model)
        modules = recorded_modules(self.model, captured)
        vars(captured)[outer_values.KEY] = OuterValues(modules, self.changed)
        if swapped:
            with hf_capture_patches(self.model, caching is not None, joins):
                mismatch = find_difference(self.model, captured, example, self.fixed)
            if mismatch is not None:
                raise CaptureError(
                    f"the capture of {captured.record.class_name} differs from the model: "
                    f"{mismatch}"
                )
        self.message = warning_text(fallback, captured, notes + more)
        return captured

    def _recorded(self, fallback: Fallback, model: nn.Module) -> tuple[CapturedModule, list[str]]:
        """Returns a graph that agrees with the model on the example, and notes for the warning.

        Parts that differ become leaves, like parts that cannot be traced.
        """
        from chop.capture.assemble import assemble
        from chop.capture.checks.dry_run import is_order_dependent
        from chop.capture.checks.locate import locate
        from chop.capture.checks.self_check import (
            GradientCheck,
            check_without_cache,
            find_mismatch,
        )
        from chop.capture.checks.side_effects import record, side_effect_notes

        caching = fallback.caching
        gradients = GradientCheck(model, fallback.example, self.fixed)
        while True:
            recording, dry_runs = record(fallback)
            captured = assemble(fallback, recording)
            if not dry_runs:
                break
            try:
                mismatch = find_mismatch(model, captured, fallback.example, dry_runs[0])
                if mismatch is None:
                    mismatch = gradients.find_mismatch(captured, recording.recorder)
            except GuardError:
                if not fallback.keep_ones():
                    raise
                continue
            if mismatch is None:
                break
            if caching is not None:
                raise CacheError(f"the graph differs from the model: {mismatch}")
            if not fallback.keep_ones():
                arguments = dry_runs[0].calls[0].arguments
                fallback.give_up(locate(model, captured, arguments, mismatch))
        self.changed = set().union(*(run.changed for run in dry_runs))
        if is_order_dependent(model, fallback.example, self.fixed, next(iter(dry_runs), None)):
            captured.record.asked[ORDER] = definition_line(type(model))
        if caching is not None and dry_runs:
            check_without_cache(model, captured, caching.plain)
        called = {str(node.target) for node in captured.graph.nodes if node.op == "call_module"}
        return captured, side_effect_notes(fallback, recording, dry_runs, called)


def _check_one_token(captured: CapturedModule) -> None:
    """Raises CacheError if the graph does not accept one new token at a time."""
    ids = torch.empty(1, 1, device="meta")
    given = {"input_ids": ids, "attention_mask": ids.expand(1, 1 + PAST)}
    for guard in captured.record.guards:
        if not guard_holds(compile_guard(guard), given):
            raise CacheError(f"it requires {guard.expression}, which {guard.where} tests")


def _copy_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns copies of the caller's tensors, since a model may write into its inputs."""
    return {name: tree_map(copied, value) for name, value in inputs.items()}


def _choose_inputs(
    model: nn.Module, inputs: Mapping[str, Any] | None, names: Sequence[str] | None
) -> dict[str, Any]:
    """Returns the example inputs that become placeholders, in signature order."""
    if inputs is None:
        inputs = dummy_inputs(model, names)
    parameters = check_parameters(model, [*inputs, *(names or ())])
    chosen = set(inputs if names is None else names)
    missing = chosen - inputs.keys()
    if missing:
        made = dummy_inputs(model, sorted(missing))
        inputs = {**inputs, **{name: made[name] for name in missing}}
    order = [*(name for name in parameters if name in chosen)]
    order += [name for name in inputs if name in chosen and name not in parameters]
    return {name: inputs[name] for name in order}


def _remove_fixed(
    model: nn.Module, example: dict[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the example without the arguments that are fixed, which have no placeholder."""
    variable = {name: value for name, value in example.items() if name not in fixed}
    if example and not variable:
        raise ConfigError(
            f"cf_args of MaseGraph fixes every input of {type(model).__name__} "
            f"({', '.join(example)}); pass example inputs as MaseGraph(model, dummy_in={{...}})"
        )
    return variable
