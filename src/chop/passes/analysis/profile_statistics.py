"""Statistics of weights, and of activations of selected nodes over batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, fx

from chop.base.tables import print_table
from chop.config import Range, check_fields
from chop.errors import ConfigError, enumerate_names
from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import Record
from chop.ir.profile import Profile, Statistics, make_statistics, nodes_named
from chop.passes.base import graph_pass

WHERE = "profile_statistics_analysis_pass"
MOST_NAMES = 4


class NotFiniteWarning(UserWarning):
    """Warning that measured values are NaN or infinite."""


@dataclass(frozen=True)
class ProfileConfig:
    """Settings of `profile_statistics_analysis_pass`.

    Attributes:
        by: kind of targets: operators, or names of nodes (or module paths).
        target_weight_nodes: targets whose parameters are measured.
        target_activation_nodes: targets whose inputs and results are measured.
        weight_statistics: settings of each statistic by name.
        activation_statistics: settings of each statistic of activations by name.
        input_generator: batches of inputs by name; needed for activations.
        num_samples: number of rows after which no further batch is taken; default, all batches.
        quiet: suppresses the table.
    """

    by: Literal["type", "name"] = "type"
    target_weight_nodes: tuple[str, ...] = ()
    target_activation_nodes: tuple[str, ...] = ()
    weight_statistics: Mapping[str, Any] = field(default_factory=dict)
    activation_statistics: Mapping[str, Any] = field(default_factory=dict)
    input_generator: Iterable[Any] | None = None
    num_samples: Annotated[int | None, Range(1)] = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for kind in ("weight", "activation"):
            targets, statistics = f"target_{kind}_nodes", f"{kind}_statistics"
            make_statistics(getattr(self, statistics), f"{WHERE}.{statistics}")
            if getattr(self, targets) and not getattr(self, statistics):
                raise ConfigError(f"{WHERE}: {targets} needs {statistics}.")
        if self.target_activation_nodes and self.input_generator is None:
            raise ConfigError(f"{WHERE}: activations need batches as 'input_generator'.")
        check_fields(self, WHERE)


@graph_pass(config=ProfileConfig, requires=("init_metadata_analysis_pass",))
def profile_statistics_analysis_pass(mg: MaseGraph, config: ProfileConfig) -> dict[str, Any]:
    """Measures parameters, and inputs and results of nodes while the graph runs in eval mode.

    Results go to `node.meta["mase"]["software"]["args" or "results"][tensor]["stat"][statistic]`.
    The statistics are those of `chop.statistics`.

    Warns (`NotFiniteWarning`) if a statistic of a parameter is NaN or infinite.

    Returns:
        statistics: mappings `args` and `results` by node name, as in the metadata.

    Example config::

        {"by": "type",
         "target_weight_nodes": ["linear"],
         "weight_statistics": {"variance_precise": {"dims": "all"}},
         "target_activation_nodes": ["relu"],
         "activation_statistics": {"range_quantile": {"quantile": 0.97}},
         "input_generator": batches, "num_samples": 32}
    """
    profile = Profile(mg, WHERE)
    for node in nodes_named(mg, config.by, config.target_weight_nodes, WHERE):
        profile.observe_weights(node, config.weight_statistics, f"{WHERE}.target_weight_nodes")
    activations = nodes_named(mg, config.by, config.target_activation_nodes, WHERE)
    if activations:
        assert config.input_generator is not None
        batches = select_inputs(mg, config.input_generator, f"{WHERE}.input_generator")
        settings = config.activation_statistics
        profile.observe_activations(activations, settings, batches, config.num_samples)
    statistics_by_node = profile.computed()
    for node, statistics in statistics_by_node.items():
        _note(node, statistics)
    if unusable := list(_not_finite(statistics_by_node)):
        warnings.warn(
            f"{WHERE}: NaN or infinite values in {enumerate_names(unusable, MOST_NAMES)}; "
            "their statistics are not meaningful",
            NotFiniteWarning,
            stacklevel=2,
        )
    if not config.quiet:
        print_table("Statistics", list(_rows(statistics_by_node)))
    return {
        "statistics": {node.name: statistics for node, statistics in statistics_by_node.items()}
    }


def _not_finite(statistics_by_node: Mapping[fx.Node, Statistics]) -> Iterator[str]:
    """Yields `node.parameter` for statistics that are NaN or infinite, except per-row ones."""
    for node, sections in statistics_by_node.items():
        for tensors in sections.values():
            for tensor, statistics in tensors.items():
                values = (
                    x for values_by_name in statistics.values() for x in values_by_name.values()
                )
                is_parameter = not tensor.startswith(("data_in", "data_out"))
                if is_parameter and not all(
                    torch.isfinite(torch.as_tensor(x)).all() for x in values
                ):
                    yield f"{node.name}.{tensor}"


def _note(node: fx.Node, statistics_by_node: Statistics) -> None:
    software: Record = node_metadata(node).software
    for section, tensors in statistics_by_node.items():
        for tensor, statistics in tensors.items():
            entry = software.setdefault(section, {}).setdefault(tensor, {})
            entry.setdefault("stat", {}).update(statistics)


def _rows(statistics_by_node: Mapping[fx.Node, Statistics]) -> Iterator[dict[str, Any]]:
    """Yields a row per node, tensor and statistic, with shapes in place of tensors."""
    for node, sections in statistics_by_node.items():
        for tensors in sections.values():
            for tensor, statistics in tensors.items():
                for name, values in statistics.items():
                    text = ", ".join(f"{key} {_format(value)}" for key, value in values.items())
                    yield {"node": node.name, "tensor": tensor, "statistic": name, "values": text}


def _format(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor {tuple(value.shape)}"
    return str(value)
