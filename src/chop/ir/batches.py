"""Batches of inputs by name, and runs of a graph that show every node at work."""

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
"""Batches as the model takes them: inputs by name, or a tensor or tuple of them in order."""

Runs = Sequence[Mapping[fx.Node, Any]]
"""The values of nodes, one mapping per batch."""

LABELS = frozenset({"labels", "label", "start_positions", "end_positions", "next_sentence_label"})
"""What data have for the loss, and what a graph without one leaves out."""


def select_inputs(mg: MaseGraph, batches: Batches, where: str) -> Iterator[dict[str, Any]]:
    """Batches by name on the graph's device, without labels and columns that no input reads.

    Floats have the dtype of the capture where the graph takes no other, see `InputDtypes`.

    Args:
        mg: the graph.
        batches: see `Batches`.
        where: the setting that the batches come from, for messages.

    Raises:
        ConfigError: a batch is none, or there is none.
        GuardError: the model refuses a batch: the graph does not hold for it.
    """
    device = next((parameter.device for parameter in mg.model.parameters()), None)
    number, dtypes = -1, InputDtypes(mg.model)
    for number, batch in enumerate(batches):
        inputs = {name: _to(x, device) for name, x in _read(mg, batch, where).items()}
        try:
            yield mg.model.admit((), dtypes.adapt(inputs))
        except GuardError as error:
            raise GuardError(f"{where}: batch {number}: {error}") from None
    if number < 0:
        raise ConfigError(f"{where}: expected at least one batch, got none.")


def by_name(mg: MaseGraph, batch: Any, where: str) -> Mapping[str, Any]:
    """A batch by the names of the inputs, whatever else it has.

    Args:
        mg: the graph.
        batch: one of `Batches`.
        where: the setting that it comes from, for messages.

    Raises:
        ConfigError: it is none.
    """
    names = _input_names(mg)
    if isinstance(batch, Tensor | tuple):
        given = batch if isinstance(batch, tuple) else (batch,)
        if len(given) > len(names):
            raise ConfigError(
                f"{where}: expected at most {len(names)} inputs in order ({', '.join(names)}), got "
                f"{len(given)}; give mappings of inputs by name."
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
    """What a model reads of a batch, by name."""
    record, names, batch = mg.model.record, _input_names(mg), by_name(mg, batch, where)
    read = {*names, *record.fixed_inputs, *record.ignored_inputs, *CACHE_NAMES}
    read -= LABELS - {*names}
    if not record.joins_packed_rows:
        # A cache that a call would make is made at each run.
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
    """Observes every node while the graph runs on each batch.

    The model runs in eval mode without gradients and is left as it was, after an error too.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: see `Visit`; it must not keep the values.
        follows_padding: see `observe_batches`.
    """
    observe_batches(mg, batches, lambda _, *seen: visit(*seen), follows_padding)


def observe_batches(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    visit: Callable[..., None],
    follows_padding: bool = True,
) -> None:
    """The same, where `visit` is given the number of the batch first.

    In it `captured.padding.hidden.hidden_elements` tells which elements of a value are padding.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: called with the number of the batch, and what `Visit` is called with.
        follows_padding: False where no one asks, which takes less time where a mask hides tokens.
    """
    model = mg.model
    with preserve_state(model), torch.no_grad():
        model.eval()
        for number, batch in enumerate(batches):
            seen, followed = _apart(functools.partial(visit, number)), HiddenElements()
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
    """Layer-wise run: the graph runs on all batches at once, one node after the other.

    A layer that `visit` changes works changed on every batch, so that what follows sees the
    change, and the model still runs only once. Values that later nodes need stay in memory for
    every batch. Modes, gradients and what is put back are those of `observe_nodes`.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: called with each node before it runs, and the values before it for each batch; in it
            `hidden_elements` tells of them.
        until: the last node that is visited, which does not run; None: all are, and run.
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
            _apart(visit)(node, [run.env for run in runs])
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


def _apart(visit: Callable[..., None]) -> Callable[..., None]:
    """The same without gradients and autocast, whatever region of the graph it is called in."""

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
