"""Arguments of a wrong type or without a meaning are refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import chop
from chop import passes
from chop.actions.bench.settings import BenchModelConfig
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.errors import ChopError, ConfigError
from chop.formats import parse_format_string
from chop.train import evaluate, find_task, fit, read_rows
from chop.workloads.workload import Workload

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2
ROWS = (X, Y)


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def _quantize(**given):
    return chop.quantize(_net(), "8.auto", **{"data": ROWS, **given})


def _graph():
    mg = chop.MaseGraph(_net(), dummy_in={"input": X})
    settings = {
        "by": "type",
        "linear": {"config": {"name": "integer", "width": 8, "frac_width": "auto"}},
    }
    return passes.quantize_transform_pass(mg, settings)[0]


def _workload():
    return Workload.of(_net(), ROWS, ROWS)


REFUSED = {
    "fraction of a row": (lambda: _quantize(calibration_rows=2.5), "calibration_rows: .* got 2.5"),
    "rows as text": (lambda: _quantize(calibration_rows="all"), "calibration_rows: .* got 'all'"),
    "true rows": (lambda: _quantize(calibration_rows=True), "calibration_rows: .* got True"),
    "no rows": (lambda: _quantize(calibration_rows=0), "calibration_rows: got 0, expected 1"),
    "no as text": (lambda: _quantize(weights_only="no"), "weights_only: expected bool, got 'no'"),
    "column number": (
        lambda: _quantize(data={"x": X, "y": Y}, label_column=3),
        "label_column: expected str or None, got 3",
    ),
    "weights without values": (
        lambda: chop.quantize(_net().to("meta"), data=X),
        "weights without values",
    ),
    "rows without values": (
        lambda: _quantize(data=(X.to("meta"), Y)),
        "tensor on the meta device, which has no values",
    ),
    "tokens without a task": (
        lambda: read_rows({"input_ids": torch.arange(12).view(3, 4)}),
        "task causal-lm takes input_ids as labels",
    ),
    "row without values": (
        lambda: _quantize(data=[(row.to("meta"), 1) for row in X]),
        "tensor on the meta device, which has no values",
    ),
    "swapped settings": (lambda: compress(_workload(), CompressConfig()), "settings .* first"),
    "settings as a mapping": (lambda: compress({"model": "mlp"}), "settings .* got dict"),
    "class of settings": (lambda: compress(CompressConfig), "got the class CompressConfig"),
    "model as workload": (lambda: compress(CompressConfig(), _net()), "workload: .* Sequential"),
    "swapped settings of a sweep": (
        lambda: quantize_sweep(_workload(), QuantizeSweepConfig()),
        "got Workload",
    ),
    "name of an input": (
        lambda: chop.MaseGraph(_net(), hf_input_names="input"),
        r"expected a list of str .* pass \['input'\]",
    ),
    "tensor of batches": (
        lambda: passes.calibrate_transform_pass(_graph(), {"batches": X}),
        r"expected a list of batches, got a tensor of shape .* pass \[x\]",
    ),
    "tensor of batches to lower": (
        lambda: passes.lower_to_integer_transform_pass(_graph(), {"batches": X}),
        r"lower_to_integer_transform_pass.batches: expected a list of batches, .* pass \[x\]",
    ),
    "batch to lower": (
        lambda: passes.lower_to_integer_transform_pass(_graph(), {"batches": {"input": X}}),
        r"lower_to_integer_transform_pass.batches: expected a list .*; pass \[batch\]",
    ),
    "batch to prune": (
        lambda: passes.prune_transform_pass(
            _graph(),
            {
                "weight": {"sparsity": 0.5},
                "activation": {"sparsity": 0.5, "scope": "global"},
                "batches": {"input": X},
            },
        ),
        r"prune_transform_pass.batches: expected a list of batches, .*; pass \[batch\]",
    ),
    "batch for batches": (
        lambda: passes.calibrate_transform_pass(_graph(), {"batches": {"input": X}}),
        r"expected a list of batches, got a dict; pass \[batch\]",
    ),
    "no layers": (lambda: chop.quantize(nn.Sequential()), "got an empty Sequential"),
    "empty path": (lambda: chop.save(_quantize(), ""), "path: got an empty text"),
    "path as number": (lambda: chop.save(_quantize(), 3), "path: expected Path, got 3"),
    "graph without path": (lambda: chop.MaseGraph(_net()).export(""), "fname: got an empty text"),
    "path without name": (lambda: chop.MaseGraph(_net()).export("/"), "'/': expected a path with"),
    "device": (lambda: fit(_net(), ROWS, device="tpu"), "device 'tpu' is not available"),
    "device list": (lambda: evaluate(_net(), ROWS, device=["cpu"]), "device: expected str"),
    "on_step": (lambda: fit(_net(), ROWS, on_step=3), "on_step: expected a function .* got 3"),
    "task": (lambda: find_task(3), "task: expected a name, a Task, .* got 3"),
    "metric": (lambda: evaluate(_net(), ROWS, metric=3), "metric: expected a name, .* got 3"),
    "metric per row": (
        lambda: evaluate(_net(), ROWS, metric=torch.eq),
        "metric 'eq': expected one number, got Tensor",
    ),
    "metric without result": (
        lambda: evaluate(_net(), ROWS, metric=lambda predictions, labels: None),
        "expected one number, got NoneType None",
    ),
    "metric of text": (
        lambda: evaluate(_net(), ROWS, metric=lambda predictions, labels: "0.9"),
        "expected one number, got str 0.9",
    ),
    "format of a run": (
        lambda: BenchModelConfig(compressed=Path("run"), format="4.auto"),
        "format: 'run' is quantized already",
    ),
    "seeds without training": (
        lambda: QuantizeSweepConfig(seeds=3, qat_epochs=0),
        "seeds: without QAT every seed is alike",
    ),
    "format": (lambda: parse_format_string(None), "format: expected a text, .* got None"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_one_sentence(call, message):
    with pytest.raises(ChopError, match=message):
        call()


def test_numbers_and_metrics_of_other_libraries_are_accepted():
    assert _quantize(calibration_rows=np.int64(4)) is not None

    def share(predictions, labels):
        return (predictions == labels).float().mean()

    value = evaluate(_net(), ROWS, metric=share, device=torch.device("cpu"))
    assert type(value) is float
    assert value == pytest.approx(evaluate(_net(), ROWS))


def test_a_compressed_model_cannot_come_from_weights_without_values(tmp_path):
    with pytest.raises(ConfigError, match="weights without values"):
        chop.compress(_net().to("meta"), ROWS, out=tmp_path)
