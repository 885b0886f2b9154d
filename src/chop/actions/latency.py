"""How fast and how large a compressed model is beside the float model that it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chop.actions.workload import Workload
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.studies.model import Contender, Inputs, ModelComparison, compare_models
from chop.train.calibration import example_inputs


def compare_with_float(
    workload: Workload,
    exact: MaseGraph,
    compressed: MaseGraph,
    *,
    file_bytes: tuple[int, int],
    threads: int = 1,
    **how: Any,
) -> ModelComparison:
    """The model itself, its graph, and the compressed graph, in turns on rows of the test set.

    Args:
        workload: the model, its data and its device.
        exact: the model's graph: what it gains is not the compression's.
        compressed: the graph that was saved.
        file_bytes: of the float and of the compressed weights' file.
        threads: of torch.
        how: `batch_sizes` and `seconds` of `chop.studies.model.compare_models`.
    Raises:
        ConfigError: the test set is smaller than a batch.
    """
    contenders = [
        Contender("float", workload.model.eval(), file_bytes[0]),
        Contender("float graph", exact.model.eval(), file_bytes[0]),
        Contender("compressed", compressed.model.to(workload.device).eval(), file_bytes[1]),
    ]
    device = str(workload.device)
    return compare_models(contenders, _rows_of(workload), threads=threads, device=device, **how)


def _rows_of(workload: Workload) -> Inputs:
    def inputs(rows: int) -> Mapping[str, Tensor]:
        if rows > len(workload.test):
            raise ConfigError(
                f"batch {rows}: the data set has only {len(workload.test)} test rows."
            )
        return example_inputs(workload.model, workload.test, rows)

    return inputs
