"""Measures weights, and the activations of the nodes that are asked for, over a few batches."""

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
    """What was measured holds NaN or infinite values."""


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
    num_samples: Annotated[int | None, Range(1)] = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for kind in ("weight", "activation"):
            targets, statistics = f"target_{kind}_nodes", f"{kind}_statistics"
            make_statistics(getattr(self, statistics), f"{WHERE}.{statistics}")
            if getattr(self, targets) and not getattr(self, statistics):
                raise ConfigError(f"{WHERE}: {targets} is given, and no {statistics}.")
        if self.target_activation_nodes and self.input_generator is None:
            raise ConfigError(f"{WHERE}: activations need batches as 'input_generator'.")
        check_fields(self, WHERE)


@graph_pass(config=ProfileConfig, requires=("init_metadata_analysis_pass",))
def profile_statistics_analysis_pass(mg: MaseGraph, config: ProfileConfig) -> dict[str, Any]:
    """Measures parameters, and real inputs and results of nodes while the graph runs in eval mode.

    Results go to `node.meta["mase"]["software"]["args" or "results"][tensor]["stat"][statistic]`.
    The statistics are those of `chop.statistics`.

    Warns with `NotFiniteWarning` where a statistic of a parameter is NaN or infinite.

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
    profile = Profile(mg, WHERE)
    for node in nodes_named(mg, config.by, config.target_weight_nodes, WHERE):
        profile.observe_weights(node, config.weight_statistics, f"{WHERE}.target_weight_nodes")
    activations = nodes_named(mg, config.by, config.target_activation_nodes, WHERE)
    if activations:
        assert config.input_generator is not None
        batches = select_inputs(mg, config.input_generator, f"{WHERE}.input_generator")
        settings = config.activation_statistics
        profile.observe_activations(activations, settings, batches, config.num_samples)
    found = profile.computed()
    for node, statistics in found.items():
        _note(node, statistics)
    if unusable := list(_not_finite(found)):
        warnings.warn(
            f"{WHERE}: NaN or infinite values in {enumerate_names(unusable, MOST_NAMES)}; "
            "statistics of them say nothing of the other values",
            NotFiniteWarning,
            stacklevel=2,
        )
    if not config.quiet:
        print_table("Statistics", list(_rows(found)))
    return {"statistics": {node.name: statistics for node, statistics in found.items()}}


def _not_finite(found: Mapping[fx.Node, Statistics]) -> Iterator[str]:
    """`node.parameter` of those with a statistic that is NaN or infinite; rows tell theirs."""
    for node, sections in found.items():
        for tensors in sections.values():
            for tensor, statistics in tensors.items():
                values = (x for of_one in statistics.values() for x in of_one.values())
                is_parameter = not tensor.startswith(("data_in", "data_out"))
                if is_parameter and not all(
                    torch.isfinite(torch.as_tensor(x)).all() for x in values
                ):
                    yield f"{node.name}.{tensor}"


def _note(node: fx.Node, found: Statistics) -> None:
    software: Record = node_metadata(node).software
    for section, tensors in found.items():
        for tensor, statistics in tensors.items():
            entry = software.setdefault(section, {}).setdefault(tensor, {})
            entry.setdefault("stat", {}).update(statistics)


def _rows(found: Mapping[fx.Node, Statistics]) -> Iterator[dict[str, Any]]:
    """One row per node, tensor and statistic; what is no single number as its shape."""
    for node, sections in found.items():
        for tensors in sections.values():
            for tensor, statistics in tensors.items():
                for name, values in statistics.items():
                    text = ", ".join(f"{key} {_format(value)}" for key, value in values.items())
                    yield {"node": node.name, "tensor": tensor, "statistic": name, "values": text}


def _format(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor {tuple(value.shape)}"
    return str(value)
