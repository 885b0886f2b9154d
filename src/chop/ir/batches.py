"""Input batches by name, and graph runs that expose the value of every node."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.huggingface.cache_names import CACHE_NAMES
from chop.captured.padding.hidden import HiddenElements
from chop.captured.runtime import REGIONS, exit_open_regions
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError, GuardError
from chop.ir.graph import MaseGraph
from chop.ir.input_dtypes import InputDtypes
from chop.ir.propagate import GraphRunner, GraphVisitor, Visit, bind_inputs

Batches = Iterable[Any]
"""Batches in any form that the model takes: inputs by name, a tensor, or several in order."""

Runs = Sequence[Mapping[fx.Node, Any]]
"""Node values, one mapping per batch."""

LABELS = frozenset({"labels", "label", "start_positions", "end_positions", "next_sentence_label"})
"""Names of the columns used by the loss, which a graph without a loss does not read."""


def select_inputs(mg: MaseGraph, batches: Batches, where: str) -> Iterator[dict[str, Any]]:
    """Returns the batches by name on the graph's device, restricted to the inputs it reads.

    Labels and unused columns are dropped. Floats are converted to the dtype of the capture if the
    graph takes no other, see `InputDtypes`.

    Args:
        mg: the graph.
        batches: see `Batches`.
        where: name of the setting that has the batches, for error messages.

    Raises:
        ConfigError: if a batch has another form, or there are no batches.
        GuardError: if a batch violates the guards of the graph.
    """
    device = next((parameter.device for parameter in mg.model.parameters()), None)
    check_are_listed(mg, batches, where)
    number, dtypes = -1, InputDtypes(mg.model)
    for number, batch in enumerate(batches):
        inputs = {name: _to(x, device) for name, x in _read(mg, batch, where).items()}
        try:
            yield mg.model.admit((), dtypes.adapt(inputs))
        except GuardError as error:
            raise GuardError(f"{where}: batch {number}: {error}") from None
    if number < 0:
        raise ConfigError(f"{where}: expected at least one batch, got none.")


def check_are_listed(mg: MaseGraph, batches: Batches, where: str) -> None:
    """Raises ConfigError if one batch is given where a list of batches is expected.

    A tensor of several batches has a dimension more than the input of the graph.
    """
    if isinstance(batches, Mapping | str):
        kind = type(batches).__name__
        raise ConfigError(f"{where}: expected a list of batches, got a {kind}; pass [batch].")
    first = mg.model.record.example_inputs.get(next(iter(_input_names(mg)), ""))
    if isinstance(batches, Tensor) and batches.dim() <= len(getattr(first, "shape", ())):
        raise ConfigError(
            f"{where}: expected a list of batches, got a tensor of shape {tuple(batches.shape)}, "
            "of which each row would be a batch; pass [x]."
        )


def by_name(mg: MaseGraph, batch: Any, where: str) -> Mapping[str, Any]:
    """Returns a batch as a mapping by input name; it may have other columns too.

    Args:
        mg: the graph.
        batch: an element of `Batches`.
        where: name of the setting that has the batch, for error messages.

    Raises:
        ConfigError: if it has none of these forms.
    """
    names = _input_names(mg)
    if isinstance(batch, list) and all(isinstance(x, Tensor) for x in batch):
        batch = tuple(batch)  # loaders yield lists
    if isinstance(batch, Tensor | tuple):
        given = batch if isinstance(batch, tuple) else (batch,)
        if len(given) > len(names):
            listed = ", ".join(names)
            pairs = ", ".join(f"'{name}': {name}" for name in names)
            raise ConfigError(
                f"{where}: expected at most {len(names)} inputs in order ({listed}), got "
                f"{len(given)}; pass mappings of inputs by name. For a loader of inputs and "
                f"labels, this is [{{{pairs}}} for {listed}, labels in loader]."
            )
        batch = dict(zip(names, given, strict=False))
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"{where}: expected mappings of inputs by name, got {type(batch).__name__}."
        )
    return batch


def _input_names(mg: MaseGraph) -> list[str]:
    return [str(node.target) for node in mg.nodes if node.op == "placeholder"]


def _read(mg: MaseGraph, batch: Any, where: str) -> dict[str, Any]:
    """Returns the entries of a batch that the model reads, by name."""
    record, names, batch = mg.model.record, _input_names(mg), by_name(mg, batch, where)
    if batch and names and not any(name in batch for name in names):
        raise ConfigError(
            f"{where}: expected a batch with the inputs {', '.join(names)}, got "
            f"{', '.join(map(str, batch))}."
        )
    read = {*names, *record.fixed_inputs, *record.ignored_inputs, *CACHE_NAMES}
    read -= LABELS - {*names}
    if not record.joins_packed_rows:
        # Each run makes the cache that a call would make.
        read.discard("use_cache")
    return {name: value for name, value in batch.items() if name in read}


def _to(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def observe_nodes(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    visit: Visit,
    follows_padding: bool = True,
) -> None:
    """Calls `visit` for every node while the graph runs on each batch.

    The model runs in eval mode without gradients. Its mode is restored, also after an error.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: see `Visit`; it must not hold on to the values.
        follows_padding: see `observe_batches`.
    """
    observe_batches(mg, batches, lambda _, *seen: visit(*seen), follows_padding)


def observe_batches(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    visit: Callable[..., None],
    follows_padding: bool = True,
) -> None:
    """Calls `visit` like `observe_nodes`, with the batch number as an additional first argument.

    Inside `visit`, `captured.padding.hidden.hidden_elements` returns the padded elements of a
    value.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: called with the number of the batch and the arguments of `Visit`.
        follows_padding: False skips the tracking of padding, which saves time on masked batches.
    """
    model = mg.model
    with preserve_state(model), torch.no_grad():
        model.eval()
        for number, batch in enumerate(batches):
            seen, followed = _without_gradients(functools.partial(visit, number)), HiddenElements()
            inputs = followed.seeded(model, batch) if follows_padding else batch
            with followed.activated():
                run = GraphVisitor(model, seen, followed.running)
                run.run(*bind_inputs(model, inputs))


def run_layerwise(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    visit: Callable[[fx.Node, Runs], None],
    until: fx.Node | None = None,
) -> None:
    """Runs the graph layer by layer: each node runs on all batches before the next node.

    If `visit` changes a layer, the later layers see its new results, and the model still runs only
    once. Values that later nodes read stay in memory for every batch. Modes and gradients are
    handled as in `observe_nodes`.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: called with each node before it runs, and the values so far for each batch. Inside,
            `hidden_elements` returns their padding.
        until: last node to visit, which does not run; None visits and runs all.
    """
    model = mg.model
    with (
        preserve_state(model),
        torch.no_grad(),
        exit_open_regions(),
        contextlib.ExitStack() as stack,
    ):
        model.eval()
        followed = HiddenElements()
        runs = [_started(model, followed.seeded(model, batch)) for batch in batches]
        stack.enter_context(followed.activated())
        for node in mg.nodes:
            _without_gradients(visit)(node, [run.env for run in runs])
            if node is until:
                return
            # An autocast region is entered and left once, and holds for all runs.
            is_region = node.target in REGIONS
            with followed.running():
                for run in runs:
                    is_done = is_region and run is not runs[0]
                    run.env[node] = runs[0].env[node] if is_done else run.run_node(node)
            torch.set_grad_enabled(False)  # the node may have ended a region without gradients
            for run in runs:
                for done in run.user_to_last_uses.get(node, ()):
                    del run.env[done]


def _without_gradients(visit: Callable[..., None]) -> Callable[..., None]:
    """Wraps `visit` so that it runs without gradients and autocast in any region."""

    def visit_apart(*args: Any) -> None:
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            visit(*args)

    return visit_apart


def _started(model: Any, batch: Mapping[str, Any]) -> GraphRunner:
    run = GraphRunner(model)
    run.args_iter = iter(bind_inputs(model, batch))
    return run
