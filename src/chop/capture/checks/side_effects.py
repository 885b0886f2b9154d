"""Side effects of a model: traced into the graph, left to a leaf, or reported in a warning."""

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
    """Records a model whose real runs say which of its modules keep state.

    Returns: the recording, and what the runs in `eval()` and, where they were needed, in `train()`
    have shown; none where the model cannot run here.
    """
    first = run_eagerly(fallback.model, fallback.example, fallback.fixed)
    dry_runs = [] if first is None else [first]
    fallback.stateful.update({} if first is None else first.stateful)
    recording = fallback.record()
    known = len(fallback.stateful) + len(fallback.mutated_buffers)
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
    """A sentence each on what the graph does not do, or does otherwise than a reader expects.

    Args:
        fallback: the capture.
        recording: what it has recorded.
        dry_runs: the eager runs.
        leaves: the paths of the modules that the graph calls; these do as they always did.
    """
    notes = []
    parameters = dict(fallback.model.named_parameters())
    written = {name for found in dry_runs for name in found.calls[0].written}
    written = {name for name in [*written, *mutated_names(recording.graphs)] if name in parameters}
    if written:
        notes.append(
            f"forward writes to its parameters {_listed(written)}; the graph does so too, and the "
            "capture has put their values back"
        )
    if recording.recorder.requires_grad_reads:
        notes.append(
            "the model asks whether a tensor requires a gradient, and the graph keeps the answer, "
            f"at {_listed(set(recording.recorder.requires_grad_reads))}"
        )
    replaced = {
        path
        for path, module in fallback.leaves.traced_modules(fallback.model)
        if is_torch_leaf(module) and why_not_its_class(module) is not None
    }
    if replaced:
        notes.append(
            f"the forward of {_listed(replaced)} was replaced on the instance; what it computes is "
            "in the graph as functions, and passes that work on layers (packing, GPTQ, pruning, "
            "LoRA) leave it out"
        )
    inside = tuple(leaves)
    unread = {
        text
        for found in dry_runs
        for path, text in found.unread
        if not any(path == leaf or path.startswith(f"{leaf}.") for leaf in inside)
    }
    if unread:
        notes.append(
            f"forward also sets {_listed(unread)}; further calls gave the same results, and the "
            "graph does not set it; where a later call reads it, make it a buffer or keep its "
            "module whole with leaves=[...] (custom_ops in MaseGraph)"
        )
    return notes


def _listed(names: Iterable[str]) -> str:
    return enumerate_names(sorted(names), _MAX_NAMES)


def _read_by_python(graphs: Iterable[fx.Graph]) -> set[str]:
    """The buffers whose values the model's Python has decided on."""
    return {
        str(node.args[0].target)
        for graph in graphs
        for node in graph.nodes
        if node.target is guard_value and node.args[0].op == "get_attr"
    }
