"""Measures weights, and the activations of the nodes that are asked for, over a few batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, fx

from chop.errors import ConfigError, did_you_mean
from chop.ir.annotate import argument_tensors, tensors_in
from chop.ir.batches import observe_nodes, select_inputs
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import Record
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import graph_pass
from chop.statistics import Statistic, make_statistic
from chop.tables import print_table

WHERE = "profile_statistics_analysis_pass"
Settings = Mapping[str, Mapping[str, Any] | None]
Found = dict[str, dict[str, dict[str, Any]]]
"""Per `args` or `results`, per tensor, per statistic: what it computed."""


@dataclass(frozen=True)
class ProfileConfig:
    """Settings of `profile_statistics_analysis_pass`.

    Attributes:
        by: what the targets are: operators, or names of nodes (or module paths).
        target_weight_nodes: whose parameters to measure.
        target_activation_nodes: whose inputs and results to measure.
        weight_statistics: a mapping of settings for each statistic by name.
        activation_statistics: the same for activations.
        input_generator: batches of inputs by name; needed for activations.
        num_samples: stops after the batch that brings the rows to so many; None takes all batches.
        quiet: prints no table.
    """

    by: Literal["type", "name"] = "type"
    target_weight_nodes: tuple[str, ...] = ()
    target_activation_nodes: tuple[str, ...] = ()
    weight_statistics: Mapping[str, Any] = field(default_factory=dict)
    activation_statistics: Mapping[str, Any] = field(default_factory=dict)
    input_generator: Iterable[Any] | None = None
    num_samples: int | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for kind in ("weight", "activation"):
            targets, statistics = f"target_{kind}_nodes", f"{kind}_statistics"
            _make(getattr(self, statistics), f"{WHERE}.{statistics}")
            if getattr(self, targets) and not getattr(self, statistics):
                raise ConfigError(f"{WHERE}: {targets} is given, and no {statistics}.")
        if self.target_activation_nodes and self.input_generator is None:
            raise ConfigError(f"{WHERE}: activations need batches as 'input_generator'.")
        if self.num_samples is not None and self.num_samples < 1:
            raise ConfigError(f"{WHERE}.num_samples: got {self.num_samples}, expected 1 or more.")


@graph_pass(config=ProfileConfig, requires=("init_metadata_analysis_pass",))
def profile_statistics_analysis_pass(mg: MaseGraph, config: ProfileConfig) -> dict[str, Any]:
    """Measures parameters, and real inputs and results of nodes while the graph runs in eval mode.

    Results go to `node.meta["mase"]["software"]["args" or "results"][tensor]["stat"][statistic]`.
    The statistics are those of `chop.statistics`.

    Returns:
        statistics: by node name the mappings `args` and `results`, the same as in the metadata.

    Example config::

        {"by": "type",
         "target_weight_nodes": ["linear"],
         "weight_statistics": {"variance_precise": {"dims": "all"}},
         "target_activation_nodes": ["relu"],
         "activation_statistics": {"range_quantile": {"quantile": 0.97}},
         "input_generator": batches, "num_samples": 32}
    """
    profile = _Profile(config)
    for node in _targets(mg, config.by, config.target_weight_nodes):
        profile.weights(mg, node)
    activations = set(_targets(mg, config.by, config.target_activation_nodes))
    if activations:
        assert config.input_generator is not None

        def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
            if node in activations:
                profile.activations(mg, node, values, result)

        batches = select_inputs(mg, config.input_generator, f"{WHERE}.input_generator")
        observe_nodes(mg, _until(batches, config.num_samples), visit)
    found = profile.computed()
    for node, statistics in found.items():
        _note(node, statistics)
    if not config.quiet:
        print_table("Statistics", list(_rows(found)))
    return {"statistics": {node.name: statistics for node, statistics in found.items()}}


class _Profile:
    """The statistics under way: by node, `args` or `results`, tensor and name."""

    def __init__(self, config: ProfileConfig) -> None:
        self.config = config
        self.streams: dict[tuple[fx.Node, str, str], dict[str, Statistic]] = {}

    def weights(self, mg: MaseGraph, node: fx.Node) -> None:
        module = mg.module_of(node)
        parameters: dict[str, Tensor] = {}
        if module is not None:
            parameters.update(module.named_parameters(recurse=False))
        if isinstance(module, PackedOperator):
            parameters.update({name: getattr(module, name) for name in module.packed_shapes})
        if not parameters:
            raise ConfigError(f"{WHERE}.target_weight_nodes: '{node.name}' has no parameters.")
        for name, parameter in parameters.items():
            quantized = isinstance(module, QuantizedOperator)
            x = module.effective(name) if quantized else parameter  # type: ignore[union-attr, operator]
            self._update((node, "args", name), self.config.weight_statistics, x)

    def activations(
        self, mg: MaseGraph, node: fx.Node, values: Mapping[fx.Node, Any], result: Any
    ) -> None:
        settings = self.config.activation_statistics
        for name, x in argument_tensors(node, mg.operator(node), values).items():
            self._update((node, "args", name), settings, x)
        for i, x in enumerate(tensors_in(result)):
            self._update((node, "results", f"data_out_{i}"), settings, x)

    def _update(self, key: tuple[fx.Node, str, str], settings: Settings, x: Tensor) -> None:
        if not x.is_floating_point():
            return
        if key not in self.streams:
            self.streams[key] = _make(settings, WHERE)
        for statistic in self.streams[key].values():
            statistic.update(x)

    def computed(self) -> dict[fx.Node, Found]:
        found: dict[fx.Node, Found] = {}
        for (node, room, tensor), statistics in self.streams.items():
            entry = found.setdefault(node, {}).setdefault(room, {})
            entry[tensor] = {name: statistic.compute() for name, statistic in statistics.items()}
        return found


def _make(settings: Settings, where: str) -> dict[str, Statistic]:
    return {name: make_statistic(name, given, where) for name, given in settings.items()}


def _targets(mg: MaseGraph, by: str, wanted: tuple[str, ...]) -> list[fx.Node]:
    """The nodes that are meant.

    Raises:
        ConfigError: a name is not in the graph.
    """

    def names(node: fx.Node) -> tuple[str, ...]:
        return (mg.operator(node).name,) if by == "type" else (node.name, str(node.target))

    known = {name for node in mg.nodes for name in names(node)}
    for name in wanted:
        if name not in known:
            what = "operator" if by == "type" else "node"
            raise ConfigError(
                f"{WHERE}: the graph has no {what} '{name}': {did_you_mean(name, known)}"
            )
    return [node for node in mg.nodes if set(names(node)) & set(wanted)]


def _until(batches: Iterable[dict[str, Any]], num_samples: int | None) -> Iterator[dict[str, Any]]:
    """Batches until they have so many rows; a batch is never cut."""
    rows = 0
    for batch in batches:
        yield batch
        rows += next((len(x) for x in batch.values() if isinstance(x, Tensor) and x.dim()), 1)
        if num_samples is not None and rows >= num_samples:
            return


def _note(node: fx.Node, found: Found) -> None:
    software: Record = metadata_of(node).software
    for room, tensors in found.items():
        for tensor, statistics in tensors.items():
            entry = software.setdefault(room, {}).setdefault(tensor, {})
            entry.setdefault("stat", {}).update(statistics)


def _rows(found: Mapping[fx.Node, Found]) -> Iterator[dict[str, Any]]:
    """One row per node, tensor and statistic; what is no single number as its shape."""
    for node, rooms in found.items():
        for tensors in rooms.values():
            for tensor, statistics in tensors.items():
                for name, values in statistics.items():
                    text = ", ".join(f"{key} {_format(value)}" for key, value in values.items())
                    yield {"node": node.name, "tensor": tensor, "statistic": name, "values": text}


def _format(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor {tuple(value.shape)}"
    return str(value)
