"""Side effects of a model: traced into the graph, kept in a leaf, or reported in a warning."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from chop.capture.checks.dry_run import DryRun, run_eagerly
from chop.capture.fallback import Fallback, Recording
from chop.captured.leaves import is_torch_leaf
from chop.captured.nodes.writes import mutated_names
from chop.captured.overrides import why_not_its_class
from chop.captured.runtime import guard_value
from chop.errors import enumerate_names

_MAX_NAMES = 4


def record(fallback: Fallback) -> tuple[Recording, list[DryRun]]:
    """Records a model, with the modules that keep state (according to eager runs) as leaves.

    Returns: the recording, and the eager runs in `eval()` and, if needed, in `train()`; the list
        is empty if the model cannot run here.
    """
    first = run_eagerly(fallback.model, fallback.example, fallback.fixed)
    dry_runs = [] if first is None else [first]
    fallback.stateful.update({} if first is None else first.stateful)
    recording = fallback.record()
    # Recorded again only if the checks below find more modules that have to stay whole.
    known = len(fallback.stateful) + len(fallback.mutated_buffers)
    # An eager run in train() costs a forward pass, so only a recording that changed other
    # attributes there causes one.
    if first is not None and fallback.changed_in_training - first.changed:
        in_train = run_eagerly(fallback.model, fallback.example, fallback.fixed, training=True)
        if in_train is not None:
            dry_runs.append(in_train)
            fallback.stateful.update(in_train.stateful)
    fallback.mutated_buffers |= _read_by_python(recording.graphs) & set(
        mutated_names(recording.graphs)
    )
    if len(fallback.stateful) + len(fallback.mutated_buffers) > known:
        recording = fallback.record()
    return recording, dry_runs


def side_effect_notes(
    fallback: Fallback, recording: Recording, dry_runs: Iterable[DryRun], leaves: Iterable[str]
) -> list[str]:
    """Returns a sentence for each side effect that the graph omits or performs unexpectedly.

    Args:
        fallback: the capture.
        recording: its recording.
        dry_runs: the eager runs.
        leaves: paths of the modules that the graph calls; their behavior is unchanged.
    """
    notes = []
    parameters = dict(fallback.model.named_parameters())
    written = {name for dry_run in dry_runs for name in dry_run.calls[0].written}
    written = {name for name in [*written, *mutated_names(recording.graphs)] if name in parameters}
    if written:
        notes.append(
            f"forward writes to its parameters {_listed(written)}, and so does the graph; the "
            "capture has restored their values"
        )
    if recording.recorder.requires_grad_reads:
        notes.append(
            "the model reads requires_grad of a tensor, and the graph keeps the answer: "
            f"{_listed(set(recording.recorder.requires_grad_reads))}"
        )
    replaced = {
        path
        for path, module in fallback.leaves.traced_modules(fallback.model)
        if is_torch_leaf(module) and why_not_its_class(module) is not None
    }
    if replaced:
        notes.append(
            f"the forward of {_listed(replaced)} was replaced on the instance; the graph contains "
            "its functions, and passes on layers (packing, GPTQ, pruning, LoRA) skip it"
        )
    inside = tuple(leaves)
    unread = {
        text
        for dry_run in dry_runs
        for path, text in dry_run.unread
        if not any(path == leaf or path.startswith(f"{leaf}.") for leaf in inside)
    }
    if unread:
        notes.append(
            f"forward also sets {_listed(unread)}; the graph does not, and further calls gave the "
            "same results. If a later call reads it, make it a buffer or keep its module whole "
            "with leaves=[...] (custom_ops in MaseGraph)"
        )
    return notes


def _listed(names: Iterable[str]) -> str:
    return enumerate_names(sorted(names), _MAX_NAMES)


def _read_by_python(graphs: Iterable[fx.Graph]) -> set[str]:
    """Returns the buffers whose values decided the model's control flow."""
    return {
        str(node.args[0].target)
        for graph in graphs
        for node in graph.nodes
        if node.target is guard_value and node.args[0].op == "get_attr"
    }
