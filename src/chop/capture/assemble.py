"""Assembly of a captured module: dead-code elimination, module tree, capture record, warnings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from chop.base.nested import has_fields, tree_children
from chop.capture.dead_code import eliminate_autocast, eliminate_dead_code, eliminate_grad_modes
from chop.capture.fallback import (
    DynamicDims,
    Fallback,
    Recording,
    is_mode_switch,
    same_class_modules,
)
from chop.capture.recording.recorder import Recorder
from chop.captured.dtype_constants import list_dtype_constants
from chop.captured.guards.ignored_arguments import plain_defaults, takes_any_keyword
from chop.captured.guards.input_guards import contiguous
from chop.captured.huggingface.generation import generation_settings
from chop.captured.module import CapturedModule
from chop.captured.module_tree import add_extras, get_class, mirror, qualified_class
from chop.captured.original import node_digests
from chop.captured.record import CaptureRecord
from chop.captured.specs import FieldsSpec, LeafReport, TensorSpec
from chop.captured.state.preserve_state import preserve_state
from chop.captured.state.values import own_copy
from chop.private.modules import share_gradient_hooks


def assemble(fallback: Fallback, recording: Recording) -> CapturedModule:
    """Returns the recording as a module with the module tree of the model."""
    recorder, graph = recording.recorder, recording.recorder.graph
    # With branches, both recordings were cleaned before their merge, each with its own values.
    if recording.branches is None:
        eliminate_grad_modes(graph, recorder.values)
        eliminate_autocast(graph, recorder.values)
    eliminate_dead_code(graph, fallback.model, recording.extras)
    _describe_nodes(graph, recorder)
    captured = CapturedModule(get_class(fallback.model).__name__)
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    mirror(fallback.model, captured, fallback.leaves, called)
    add_extras(captured, recording.extras, recorder.constants)
    share_gradient_hooks(fallback.model, captured)
    _fill_record(captured.record, fallback, recording)
    if fallback.probes and recording.eval_only is None:
        captured.record.follows_dtype = list_dtype_constants(graph)
    # The digests tell later edits of the graph from what was recorded.
    captured.record.node_digests = node_digests(graph)
    captured.graph = graph
    return captured


def _fill_record(record: CaptureRecord, fallback: Fallback, recording: Recording) -> None:
    """Fills the capture record with metadata that graph and module tree lack."""
    config = getattr(fallback.model, "config", None)
    # A layer may be called `config` too.
    record.config = None if isinstance(config, nn.Module | Tensor) else config
    example, caching = fallback.example, fallback.caching
    if caching is not None:
        example, record.optional_inputs = dict(caching.plain), caching.optional
    record.example_inputs = {name: _specs(value) for name, value in example.items()}
    record.generation_config = generation_settings(fallback.model)
    record.fixed_inputs = {
        name: own_copy(value)
        for name, value in fallback.fixed.items()
        if caching is None or name != "use_cache"
    }
    parameters = inspect.signature(fallback.model.forward).parameters
    record.ignored_inputs = tuple(
        name for name in parameters if name not in (*example, *record.optional_inputs)
    )
    record.ignored_defaults = plain_defaults(fallback.model, record.ignored_inputs)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    record.positional = tuple(x.name for x in parameters.values() if x.kind in by_position)
    record.takes_any_keyword = takes_any_keyword(fallback.model)
    record.constants = tuple(recording.recorder.constants)
    record.asked = dict(recording.recorder.query_lines)
    record.contiguous_inputs = contiguous(example)
    record.guards = recording.recorder.sizes.guards()
    if recording.branches is not None:
        guards = recording.branches.sizes.guards()
        record.training_guards = [guard for guard in guards if guard not in record.guards]
    record.auto_leaves = tuple(_reports(fallback, recording.recorder))
    record.always_eval = _always_eval(fallback.model)
    if recording.eval_only is not None:
        advice = "move these lines into a submodule, which can be kept as one node"
        record.eval_only = f"{recording.eval_only}; {advice}"


def _always_eval(model: nn.Module) -> tuple[str, ...]:
    """Returns the submodules that stay in `eval()` after `model.train()`, such as frozen batch
    norms.
    """
    with preserve_state(model):
        model.train()
        modules = model.named_modules()
        return tuple(name for name, module in modules if name and not module.training)


def _describe_nodes(graph: fx.Graph, recorder: Recorder) -> None:
    """Replaces the fake values in node metadata with plain descriptions."""

    def describe(value: Any) -> Any:
        if isinstance(value, Tensor):
            return TensorSpec(tuple(map(recorder.sizes.describe, value.shape)), value.dtype)
        if isinstance(value, tuple | list):
            return tuple(map(describe, value))
        if isinstance(value, Mapping):
            return {key: describe(item) for key, item in value.items()}
        return None

    for node in graph.nodes:
        spec = describe(recorder.values.get(node))
        if spec is not None:
            node.meta["spec"] = spec


def _specs(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorSpec.of(value)
    parts = tree_children(value)
    if parts is None:
        return value
    specs = {key: _specs(part) for key, part in parts.items()}
    if has_fields(value):
        return FieldsSpec(qualified_class(value), specs)
    if isinstance(value, Mapping):
        return specs
    return list(specs.values()) if isinstance(value, list) else tuple(specs.values())


def _reports(fallback: Fallback, recorder: Recorder) -> list[LeafReport]:
    return [
        LeafReport(
            path,
            qualified_class(fallback.model.get_submodule(path)),
            graph_break.where,
            str(graph_break),
            recorder.leaf_operators.get(path, 0),
        )
        for path, graph_break in fallback.graph_breaks.items()
        if path
    ]


_FIXED_SIZES = {
    DynamicDims.ALL: "",
    DynamicDims.BATCH: " and sizes other than the batch's",
    DynamicDims.NONE: " and sizes",
}


def warning_text(fallback: Fallback, captured: CapturedModule, notes: Sequence[str]) -> str | None:
    """Returns one message that lists all limitations of the capture."""
    lines = _leaf_notes(fallback, captured.record.auto_leaves)
    if "" in fallback.graph_breaks:
        decisions = f"data-dependent decisions{_FIXED_SIZES[fallback.dynamic_dims]}"
        lines.append(
            f"{decisions} are those of the example, checked at run time: "
            f"{fallback.graph_breaks['']}"
        )
    if captured.record.eval_only is not None:
        lines.append(f"the graph supports eval() only: {captured.record.eval_only}")
    lines += notes
    if not lines:
        return None
    return f"capture of {captured.record.class_name}: " + "\n  ".join(lines)


def _leaf_notes(fallback: Fallback, reports: Sequence[LeafReport]) -> list[str]:
    """Returns one line for each class of modules that became leaves."""
    covered: set[str] = set()
    lines = []
    for report in reports:
        if report.path in covered or is_mode_switch(
            fallback.model, fallback.graph_breaks[report.path]
        ):
            continue
        same = [path for path, _ in same_class_modules(fallback.model, report.path)]
        covered.update(same)
        others = f" and {len(same) - 1} more of its class" if len(same) > 1 else ""
        lines.append(
            f"{report.path} ({report.class_name}){others} became a leaf that hides "
            f"{report.operators} operators: {report.reason}"
        )
    return lines
