"""Common metadata: operator, type, shapes and dtypes of each node."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.ir.annotate import annotate
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.ir.propagate import example_inputs
from chop.passes.base import graph_pass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommonMetadataConfig:
    """Settings of `add_common_metadata_analysis_pass`.

    Attributes:
        dummy_in: example inputs by name; default, inputs like those of the capture. A graph from
            guessed inputs that is not valid for them is captured again.
        add_value: also stores the values of all tensors, which runs the model once.
        force_device_meta: accepted for compatibility with MASE; shapes never need real memory here.
    """

    dummy_in: Mapping[str, Any] | None = None
    add_value: bool = False
    force_device_meta: bool = False


@graph_pass(config=CommonMetadataConfig, requires=("init_metadata_analysis_pass",))
def add_common_metadata_analysis_pass(
    mg: MaseGraph, config: CommonMetadataConfig
) -> dict[str, Any]:
    """Adds `common` metadata: operator, type, and shape and dtype of every argument and result.

    Shapes come from a run on fake tensors, which costs neither arithmetic nor memory.

    Returns: nothing.
    """
    if config.dummy_in is not None:
        if mg.fit(config.dummy_in):
            for node in mg.nodes:
                node.meta["mase"] = MaseMetadata(node)
    elif mg.model.record.guessed:
        _warn_guessed(repr({n: s.shape for n, s in mg.model.record.example_inputs.items()}))
    inputs = example_inputs(mg.model) if config.dummy_in is None else config.dummy_in
    annotate(mg, inputs, config.add_value)
    return {}


@functools.cache
def _warn_guessed(shapes: str) -> None:
    log.warning(
        "the inputs of the graph were guessed: %s; for others pass data= to chop.quantize, or "
        "dummy_in={...} to MaseGraph or to add_common_metadata_analysis_pass",
        shapes,
    )
