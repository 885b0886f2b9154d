"""Makes a captured module of a recording."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from chop.capture.captured import CapturedModule, CaptureRecord
from chop.capture.cleanup import drop_dead_code, drop_idle_autocast, drop_idle_grad_switches
from chop.capture.dropped import plain_defaults, takes_any_keyword
from chop.capture.dtypes import followers
from chop.capture.fallback import Free, Ladder, Recording, alike, hides_nothing
from chop.capture.isolation import untouched
from chop.capture.leaves import GRADIENT_HOOKS
from chop.capture.module_tree import add_extras, mirror, qualified_class
from chop.capture.questions import contiguous
from chop.capture.recorder import Recorder
from chop.capture.specs import FieldsSpec, LeafReport, TensorSpec
from chop.capture.structure import has_fields, parts_of


def assemble(ladder: Ladder, recording: Recording) -> CapturedModule:
    """The recording as a module with the tree of the model."""
    recorder, graph = recording.recorder, recording.recorder.graph
    drop_idle_grad_switches(graph, recorder.values)
    drop_idle_autocast(graph, recorder.values)
    drop_dead_code(graph, ladder.model, recording.extras)
    _describe_nodes(graph, recorder)
    captured = CapturedModule(type(ladder.model).__name__)
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    mirror(ladder.model, captured, ladder.leaves, called)
    add_extras(captured, recording.extras, recorder.constants)
    captured._is_full_backward_hook = ladder.model._is_full_backward_hook
    for hooks in GRADIENT_HOOKS:
        setattr(captured, hooks, copy.copy(getattr(ladder.model, hooks)))
    _note(captured.record, ladder, recording)
    if ladder.probes and recording.eval_only is None:
        captured.record.follows_dtype = followers(graph)
    captured.graph = graph
    return captured


def _note(record: CaptureRecord, ladder: Ladder, recording: Recording) -> None:
    """What a captured module has to know besides graph and tree."""
    config = getattr(ladder.model, "config", None)
    # A layer may be called `config` too.
    record.config = None if isinstance(config, nn.Module | Tensor) else config
    record.example_inputs = {name: _specs(value) for name, value in ladder.example.items()}
    record.fixed_inputs = {
        name: value for name, value in ladder.fixed.items() if not isinstance(value, Tensor)
    }
    parameters = inspect.signature(ladder.model.forward).parameters
    record.ignored_inputs = tuple(name for name in parameters if name not in ladder.example)
    record.ignored_defaults = plain_defaults(ladder.model, record.ignored_inputs)
    record.takes_any_keyword = takes_any_keyword(ladder.model)
    record.constants = tuple(recording.recorder.constants)
    record.asked = dict(recording.recorder.asked)
    record.contiguous_inputs = contiguous(ladder.example)
    record.guards = recording.recorder.sizes.guards()
    record.auto_leaves = tuple(_reports(ladder, recording.recorder))
    record.always_eval = _always_eval(ladder.model)
    if recording.eval_only is not None:
        record.eval_only = str(recording.eval_only)


def _always_eval(model: nn.Module) -> tuple[str, ...]:
    """Submodules that `model.train()` leaves in `eval()`: frozen batch norms, for example."""
    with untouched(model):
        model.train()
        modules = model.named_modules()
        return tuple(name for name, module in modules if name and not module.training)


def _describe_nodes(graph: fx.Graph, recorder: Recorder) -> None:
    """Leaves plain descriptions of the fake values in the metadata."""

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
    parts = parts_of(value)
    if parts is None:
        return value
    specs = {key: _specs(part) for key, part in parts.items()}
    if has_fields(value):
        return FieldsSpec(qualified_class(value), specs)
    if isinstance(value, Mapping):
        return specs
    return list(specs.values()) if isinstance(value, list) else tuple(specs.values())


def _reports(ladder: Ladder, recorder: Recorder) -> list[LeafReport]:
    return [
        LeafReport(
            path,
            qualified_class(ladder.model.get_submodule(path)),
            blocked.where,
            str(blocked),
            recorder.hidden_operators.get(path, 0),
        )
        for path, blocked in ladder.given_up.items()
        if path
    ]


_FIXED_SIZES = {
    Free.ALL: "",
    Free.BATCH: " and sizes other than the batch's",
    Free.NONE: " and sizes",
}


def announced(ladder: Ladder, captured: CapturedModule, notes: Sequence[str]) -> str | None:
    """One message for everything in which the capture is less than the model."""
    lines = _hidden(ladder, captured.record.auto_leaves)
    if "" in ladder.given_up:
        kept = f"decisions on data{_FIXED_SIZES[ladder.free]} are those of the example"
        lines.append(f"{kept}, and checked at run time: {ladder.given_up['']}")
    if captured.record.eval_only is not None:
        lines.append(f"the graph holds eval() only: {captured.record.eval_only}")
    lines += notes
    if not lines:
        return None
    return f"capture of {captured.record.class_name}: " + "\n  ".join(lines)


def _hidden(ladder: Ladder, reports: Sequence[LeafReport]) -> list[str]:
    """One line per class of modules that became leaves."""
    told: set[str] = set()
    lines = []
    for report in reports:
        if report.path in told or hides_nothing(ladder.model, ladder.given_up[report.path]):
            continue
        same = [path for path, _ in alike(ladder.model, report.path)]
        told.update(same)
        others = f", like {len(same) - 1} more of its class," if len(same) > 1 else ""
        lines.append(
            f"{report.path} ({report.class_name}){others} is one node that hides "
            f"{report.operators} operators: {report.reason}"
        )
    return lines
