"""How fast and how large a compressed model is beside the float model that it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from chop.actions.workload import Workload
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.studies.model import BATCH_SIZES, Contender, Inputs, ModelComparison, compare_models
from chop.train.calibration import example_inputs


def compare_with_float(
    workload: Workload,
    exact: MaseGraph,
    compressed: MaseGraph,
    *,
    file_bytes: tuple[int, int],
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seconds: float = 1.0,
    threads: int = 1,
) -> ModelComparison:
    """The model itself, its graph, and the compressed graph, in turns on rows of the test set.

    Args:
        workload: the model, its data and its device.
        exact: the model's graph: what it gains is not the compression's.
        compressed: the graph that was saved.
        file_bytes: of the float and of the compressed weights' file.
        batch_sizes: rows of an input.
        seconds: of measuring, per model and batch size.
        threads: of torch.
    Raises:
        ConfigError: the test set is smaller than a batch.
    """
    contenders = [
        Contender("float", workload.model.eval(), file_bytes[0]),
        Contender("float graph", exact.model.eval(), file_bytes[0]),
        Contender("compressed", compressed.model.to(workload.device).eval(), file_bytes[1]),
    ]
    return compare_models(
        contenders,
        _rows_of(workload),
        batch_sizes=batch_sizes,
        seconds=seconds,
        threads=threads,
        device=str(workload.device),
    )


def _rows_of(workload: Workload) -> Inputs:
    def inputs(rows: int) -> Mapping[str, Tensor]:
        if rows > len(workload.test):
            raise ConfigError(
                f"batch {rows}: the data set has only {len(workload.test)} test rows."
            )
        return example_inputs(workload.model, workload.test, rows)

    return inputs
