"""Folds that a circuit cannot meet, and circuits that are too large to simulate."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions.emit.job import emit as emit_job
from chop.actions.emit.settings import EmitConfig
from chop.errors import ConfigError
from chop.hardware.design.emit import emit
from chop.hardware.folds import limits
from chop.hardware.folds.limits import (
    check_products,
    describe_unmet,
    parallel_products,
    unmet_fold,
)
from chop.hardware.integer_form import integer_form
from tests.actions.emit.circuits import SETTINGS, workload

FIXED = {"config": {"name": "integer", "width": 8, "frac_width": 5}}


def integers(model, *shape, scale=1.0):
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.uniform_(weight, -scale, scale)
    mg = MaseGraph(model, dummy_in={"input": torch.randn(2, *shape)})
    kinds = {mg.operator(node).name for node in mg.nodes} & {"linear", "conv2d", "max_pool2d"}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type"} | dict.fromkeys(kinds, FIXED))
    return integer_form(quantized)


def pooled():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("asked", [1, 3, 16])
def test_a_fold_that_no_window_reaches_names_the_window_and_a_fold_that_is_met(asked):
    mg = integers(pooled(), 1, 6, 6)
    design = emit(mg, asked)
    unmet = unmet_fold(design, mg, asked)
    cycles = {part.name: part.plan.cycles for part in design.netlist.instances}
    cycles |= {port.name: port.wire.stream.beats for port in design.netlist.inputs}
    name, taken = next(iter(unmet["slowest"].items()))
    assert taken == design.interval == max(cycles.values()) and cycles[name] == taken > asked
    assert emit(mg, unmet["nearest"]).interval <= unmet["nearest"]
    assert unmet_fold(emit(mg, unmet["nearest"]), mg, unmet["nearest"]) == {}
    # No fold between the asked one and the nearest is met.
    for fold in range(asked, unmet["nearest"]):
        assert emit(mg, fold).interval > fold
    assert f"'{name}' takes {taken}" in describe_unmet(unmet)
    assert f"met is {unmet['nearest']}." in describe_unmet(unmet)


@pytest.mark.parametrize("asked", [0, 1, 2, 64])
def test_a_fold_of_a_linear_layer_is_met_in_silence(asked):
    mg = integers(nn.Sequential(nn.Linear(8, 8)), 8)
    assert unmet_fold(emit(mg, asked), mg, asked) == {}


def test_a_sentence_lists_three_components_and_counts_the_others():
    slowest = {"a": 9, "b": 8, "c": 7, "d": 6, "e": 5}
    sentence = describe_unmet({"asked": 4, "slowest": slowest, "nearest": 9})
    assert "'a' takes 9 cycles, 'b' takes 8 cycles, 'c' takes 7 cycles and 2 more" in sentence


@pytest.mark.parametrize("scale", [4.0, 0.03], ids=["8 bits", "ternary"])
def test_products_of_all_kinds_of_weights_count(scale):
    design = emit(integers(nn.Sequential(nn.Linear(16, 12)), 16, scale=scale), 1)
    assert parallel_products(design.netlist) == 16 * 12


def test_a_circuit_of_too_many_multipliers_is_refused_with_a_fold_of_fewer(monkeypatch):
    monkeypatch.setattr(limits, "SLOW_PRODUCTS", 20)
    monkeypatch.setattr(limits, "MOST_PRODUCTS", 50)
    mg = integers(nn.Sequential(nn.Linear(16, 12)), 16)
    with pytest.raises(ConfigError, match=r"192 multipliers, more than 50.*--fold 4 has 48"):
        check_products(emit(mg, 1), mg, 1, False)
    assert "Continuing because of --force" in check_products(emit(mg, 1), mg, 1, True)
    assert "takes minutes to compile" in check_products(emit(mg, 4), mg, 4, False)
    assert check_products(emit(mg, 16), mg, 16, False) == ""


@pytest.mark.tools("verilator", "iverilog", "yosys")
def test_the_job_stops_before_it_compiles_a_circuit_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "SLOW_PRODUCTS", 4)
    monkeypatch.setattr(limits, "MOST_PRODUCTS", 10)
    settings = SETTINGS | {"fold": 1, "force": False}
    monkeypatch.setattr("chop.workloads.chance._why_uninformative", lambda *given: None)
    monkeypatch.setattr("chop.actions.emit.job.verify", lambda *given: pytest.fail("simulated"))
    with pytest.raises(ConfigError, match=r"36 multipliers, more than 10.*--force continues"):
        emit_job(EmitConfig(**settings, out=tmp_path / "out"), workload())
    assert not (tmp_path / "out").exists()
