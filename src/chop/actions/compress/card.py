"""Model card of a compression: how the model was made, and its metric against float."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chop.actions.compress.ptq import METHODS
from chop.formats import parse_format_string
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.card import CALIBRATION, COMMAND, METHOD_ROW, add_rows, code
from chop.report.command_line import command_line
from chop.workloads.hf_folder import FOLDER

if TYPE_CHECKING:
    from chop.actions.compress.settings import CompressConfig
    from chop.actions.compress.table import Candidate
    from chop.workloads.workload import Workload

NEAREST = "each weight is rounded to the nearest value"


def write_model_card(
    results: Path,
    mg: MaseGraph,
    exact: Candidate,
    chosen: Candidate,
    workload: Workload,
    config: CompressConfig,
) -> None:
    """Writes the card of the transformers folder among staged results, if there is one."""
    folder = results / FOLDER
    if not folder.is_dir():
        return
    metric = workload.task.metric
    mine, reference = (each.scores["test"].format(metric) for each in (chosen, exact))
    tested, command = chosen.tested_on(workload), command_line(sys.argv)
    rows = {
        METHOD_ROW: _method(chosen, config),
        CALIBRATION: _calibration(chosen, workload, config),
        metric.title: f"{mine}{tested} of {workload.dataset}; float {reference}",
        COMMAND: code(command) if command.startswith("chop ") else "",
    }
    base = str(getattr(mg.model.record.config, "name_or_path", "") or workload.name)
    add_rows(folder, rows, base, config.out / FOLDER)


def _method(chosen: Candidate, config: CompressConfig) -> str:
    if chosen.row.method == "QAT":
        return "quantization-aware training (QAT)"
    names = [name for name in METHODS if name in config.method]
    return f"{chosen.row.method}: {', '.join(METHODS[x].summary for x in names) or NEAREST}"


def _calibration(chosen: Candidate, workload: Workload, config: CompressConfig) -> str:
    count, data = len(workload.train), workload.dataset
    if chosen.row.method == "QAT":
        return f"trained on {count:,} rows of {data}"
    waits = any(not parse_format_string(text).is_fitted for text in config.formats)
    if not waits and not set(config.method) - {"rotate"}:
        return "none"
    return f"{min(count, config.calibration_rows):,} training rows of {data}"
