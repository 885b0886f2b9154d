"""Sweeps of integer bits and fraction bits, and the ranges that they begin with."""

import csv
import math

import pytest
import torch

from chop import MaseGraph, passes
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.actions.sweep.split_widths import least_without_loss
from chop.actions.sweep.value_ranges import value_ranges
from chop.formats import Integer, QuantSpec
from chop.train import evaluate
from chop.workloads.workload import Workload, raise_to_graph
from tests import workloads

LAYERS = ("first", "dead", "last")


@pytest.fixture(scope="module")
def workload():
    return Workload.of(workloads.plain(), *workloads.rows()).with_validation()


@pytest.fixture(scope="module")
def inputs(workload):
    """The largest magnitude that enters each layer, from hooks on the plain model."""
    largest = dict.fromkeys(LAYERS, 0.0)

    def note(name):
        return lambda module, args: largest.update(
            {name: max(largest[name], args[0].abs().max().item())}
        )

    model = workloads.plain()
    for name in LAYERS:
        model.get_submodule(name).register_forward_pre_hook(note(name))
    with torch.no_grad():
        for batch in workload.train.spread(64).batches(32, pad_id=0):
            model(batch["x"])
    return largest


def fewest_integer_bits(largest):
    return next(m for m in range(1, 40) if largest < 2 ** (m - 1))


def points(folder):
    return (folder / "points.jsonl").read_text().splitlines()


def test_ranges_are_those_of_weights_and_inputs(workload, inputs):
    ranges = value_ranges(raise_to_graph(workload), ("linear", "embedding"), workload, 64)
    found = {(each.layer, each.operand): each for each in ranges}
    assert set(found) == {(n, operand) for n in LAYERS for operand in ("weight", "bias", "input")}
    for name in LAYERS:
        layer = workload.model.get_submodule(name)
        for operand, largest in (
            ("weight", layer.weight.abs().max().item()),
            ("bias", layer.bias.abs().max().item()),
            ("input", inputs[name]),
        ):
            each = found[name, operand]
            assert each.largest == pytest.approx(largest, rel=1e-5)
            assert each.integer_bits == fewest_integer_bits(largest)
    counts = found["first", "weight"].histogram.counts
    assert sum(counts) == workload.model.first.weight.numel()


def test_a_power_of_two_needs_one_integer_bit_more(workload):
    mg = raise_to_graph(workload).copy()
    with torch.no_grad():
        mg.modules["first"].weight[0, 0] = 16.0
    (found,) = (
        each
        for each in value_ranges(mg, ("linear",), workload, 8)
        if (each.layer, each.operand) == ("first", "weight")
    )
    assert found.integer_bits == 6 and Integer(6 + 2, 2)(torch.tensor(16.0)) == 16
    assert Integer(5 + 2, 2)(torch.tensor(16.0)) < 16


def test_the_least_is_within_a_standard_error_of_the_best(workload):
    metric = workload.task.metric
    scores = {1: 0.1, 2: 0.925, 3: 0.93, 4: 0.94}
    chosen, error = least_without_loss(scores, metric, 400)
    assert chosen == 3 and error == pytest.approx(math.sqrt(0.94 * 0.06 / 400))
    assert least_without_loss(scores, metric, 100)[0] == 2


@pytest.mark.long
def test_integer_bits_are_varied_and_then_fraction_bits(workload, inputs, tmp_path, capsys):
    settings = {"out": tmp_path, "integer_bits": "1:12", "fraction_bits": "1,4", "qat_epochs": 1}
    rows = quantize_sweep(QuantizeSweepConfig(**settings, seeds=2), workload)
    said = " ".join(capsys.readouterr().out.split())
    parameters = [p.abs().max().item() for p in workload.model.parameters()]
    most = fewest_integer_bits(max([*parameters, *inputs.values()]))
    varied = [(row["varied"], row["integer_bits"], row["frac_width"]) for row in rows]
    chosen = varied[-1][1]
    assert varied == [
        *(("integer bits", n, 4) for n in range(1, most + 1)),
        *(("fraction bits", chosen, n) for n in (1, 4)),
    ]
    beyond = ", ".join(map(str, range(most + 1, 13)))
    assert f"needs more than {most}: {beyond}." in said
    assert f"PTQ needs {chosen} integer bits: the fewest within" in said
    for row in rows:
        assert row["width"] == row["integer_bits"] + row["frac_width"]
        assert row["QAT (least)"] <= row["QAT"] <= row["QAT (greatest)"] and row["seconds"] > 0
    widest = rows[most - 1]
    spec = {"config": QuantSpec.uniform(Integer(most + 4, 4))}
    mg = MaseGraph(workload.model, dummy_in=workload.example())
    rounded, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": spec})
    assert widest["PTQ"] == evaluate(rounded.model, workload.test)
    files = {file.name for file in tmp_path.iterdir()}
    assert {"integer-bits.svg", "fraction-bits.png", "ranges.svg", "ranges.csv"} <= files
    ranges = list(csv.DictReader((tmp_path / "ranges.csv").read_text().splitlines()))
    assert [row["layer"] for row in ranges] == list(LAYERS)
    assert float(ranges[2]["largest weight"]) == parameters[4]


@pytest.mark.long
def test_more_seeds_go_on_from_fewer(workload, tmp_path):
    settings = {"out": tmp_path, "widths": 6, "qat_epochs": 1}
    (one,) = quantize_sweep(QuantizeSweepConfig(**settings), workload)
    before = points(tmp_path)
    (three,) = quantize_sweep(QuantizeSweepConfig(**settings, seeds=3), workload)
    after = points(tmp_path)
    assert len(before) == 3 and after[:3] == before and len(after) == 5
    assert one["PTQ"] == three["PTQ"] and "QAT (least)" not in one
    assert three["QAT (least)"] <= one["QAT"] <= three["QAT (greatest)"]
    svg = (tmp_path / "accuracy.svg").read_text()
    assert "mean and range of the seeds" in svg
    (again,) = quantize_sweep(QuantizeSweepConfig(**settings), workload)
    assert again == one and points(tmp_path) == after
