"""Statistics of parameters, and of inputs and results of nodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from chop.captured.padding.hidden import hidden_elements, zeroed
from chop.errors import ConfigError, did_you_mean
from chop.ir.annotate import argument_tensors, tensors_in
from chop.ir.batches import observe_batches
from chop.ir.graph import MaseGraph
from chop.ir.nodes import list_names
from chop.ir.rows import non_finite_rows
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.statistics import Statistic, make_statistic

Settings = Mapping[str, Mapping[str, Any] | None]
"""Settings by statistic name."""
Statistics = dict[str, dict[str, dict[str, Any]]]
"""`args` or `results` -> tensor -> statistic -> its values."""


class Profile:
    """Statistics in progress, by node, `args` or `results`, tensor and name.

    Args:
        mg: the graph.
        where: name of the caller, for messages.
    """

    def __init__(self, mg: MaseGraph, where: str) -> None:
        self._mg, self._where = mg, where
        self._streams: dict[tuple[fx.Node, str, str], dict[str, Statistic]] = {}
        self._has_nan = False

    def observe_weights(self, node: fx.Node, settings: Settings, where: str) -> None:
        """Measures the parameters of the module that a node calls.

        Args:
            node: the node.
            settings: settings by statistic name.
            where: setting that selects the node, for messages.

        Raises:
            ConfigError: if the node has no parameters.
        """
        module = self._mg.get_module(node)
        parameters: dict[str, Tensor] = {}
        if module is not None:
            parameters.update(module.named_parameters(recurse=False))
        if isinstance(module, PackedOperator):
            parameters.update({name: getattr(module, name) for name in module.packed_shapes})
        if not parameters:
            raise ConfigError(f"{where}: '{node.name}' has no parameters.")
        for name, parameter in parameters.items():
            quantized = isinstance(module, QuantizedOperator)
            x = module.effective(name) if quantized else parameter  # type: ignore[union-attr, operator]
            self._update((node, "args", name), settings, x)

    def observe_activations(
        self,
        nodes: Sequence[fx.Node],
        settings: Settings,
        batches: Iterable[dict[str, Any]],
        num_samples: int | None,
    ) -> None:
        """Measures inputs and results of nodes while the graph runs on batches.

        Tokens hidden by an attention mask are excluded.

        Args:
            nodes: nodes to measure.
            settings: settings by statistic name.
            batches: from `select_inputs`.
            num_samples: number of rows after which no further batch is read; None reads all.
        """
        wanted = set(nodes)

        def visit(number: int, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
            if node in wanted:
                arguments = argument_tensors(node, self._mg.operator(node), values)
                tensors = {("args", name): x for name, x in arguments.items()}
                tensors |= {
                    ("results", f"data_out_{i}"): x for i, x in enumerate(tensors_in(result))
                }
                for (side, name), x in tensors.items():
                    self._warn_of_nan(zeroed(x), number, node)
                    self._update((node, side, name), settings, x, hidden_elements(x))

        observe_batches(self._mg, _until(batches, num_samples), visit)

    def _warn_of_nan(self, x: Tensor, number: int, node: fx.Node) -> None:
        """Warns of the first NaN, which the statistics include."""
        if not self._has_nan and x.is_floating_point() and bool(x.isnan().any()):
            self._has_nan = True
            row = int(non_finite_rows(x)[0])
            warnings.warn(
                f"{self._where}: row {row} of batch {number} causes NaN in '{node.name}', and its "
                "statistics include it; leave the row out.",
                stacklevel=2,
            )

    def _update(
        self,
        key: tuple[fx.Node, str, str],
        settings: Settings,
        x: Tensor,
        hidden: Tensor | None = None,
    ) -> None:
        if not x.is_floating_point():
            return
        if key not in self._streams:
            self._streams[key] = make_statistics(settings, self._where)
        for statistic in self._streams[key].values():
            statistic.update(x, hidden)

    def computed(self) -> dict[fx.Node, Statistics]:
        """Returns the computed statistics by node."""
        result: dict[fx.Node, Statistics] = {}
        for (node, side, tensor), statistics in self._streams.items():
            entry = result.setdefault(node, {}).setdefault(side, {})
            entry[tensor] = {name: statistic.compute() for name, statistic in statistics.items()}
        return result


def make_statistics(settings: Settings, where: str) -> dict[str, Statistic]:
    """Makes new statistics by name.

    Raises:
        ConfigError: if a name is unknown or a setting is invalid.
    """
    return {name: make_statistic(name, given, where) for name, given in settings.items()}


def nodes_named(mg: MaseGraph, by: str, wanted: Sequence[str], where: str) -> list[fx.Node]:
    """Returns the nodes selected by names.

    Args:
        mg: the graph.
        by: "type" for operator names, "name" for names of nodes and modules.
        wanted: the names.
        where: setting with the names, for messages.

    Raises:
        ConfigError: if a name is not in the graph.
    """

    def names(node: fx.Node) -> tuple[str, ...]:
        return (mg.operator(node).name,) if by == "type" else list_names(node)

    known = {name for node in mg.nodes for name in names(node)}
    for name in wanted:
        if name not in known:
            what = "operator" if by == "type" else "node"
            raise ConfigError(
                f"{where}: the graph has no {what} '{name}': {did_you_mean(name, known)}"
            )
    return [node for node in mg.nodes if set(names(node)) & set(wanted)]


def _until(batches: Iterable[dict[str, Any]], num_samples: int | None) -> Iterator[dict[str, Any]]:
    """Yields batches until they have `num_samples` rows; batches are not split."""
    rows = 0
    for batch in batches:
        yield batch
        rows += next((len(x) for x in batch.values() if isinstance(x, Tensor) and x.dim()), 1)
        if num_samples is not None and rows >= num_samples:
            return
