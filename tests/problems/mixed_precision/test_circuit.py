"""Costs of a circuit: what a search estimates is what the emitted design is estimated at."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.base.notices import forget_notices
from chop.errors import ConfigError
from chop.formats import MinifloatIEEE, MXInt, parse_format_string
from chop.hardware.costs.devices import DEVICES, ECP5
from chop.hardware.costs.estimate import design_cost, estimate_cost
from chop.hardware.design.emit import emit
from chop.hardware.folds.fold import excess
from chop.problems.mixed_precision.allocation import Allocation
from chop.problems.mixed_precision.circuit import CircuitCosts, CircuitSettings
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.problems.mixed_precision.warm_start import costs_if_any, uniforms_within, warm_start
from chop.search import Constraint, Goal
from chop.search.objective import NotANumberError
from chop.train import fit
from tests.workloads import graph, rows

KL = Goal("kl", "minimize")
OF_CIRCUIT = [name for name, cost in COSTS.items() if cost.is_of_circuit]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.last(y + torch.tanh(self.inner(y)))


@cache
def trained():
    torch.manual_seed(0)
    model = Residual()
    fit(model, rows()[0], epochs=4, lr=1e-2)
    mg = MaseGraph(model.eval(), dummy_in={"x": torch.randn(3, 16)})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg)[0]


def problem(mg=None, settings=None, **given):
    given = {"ranges": {"width": (4, 8)}, "per": "operand", **given}
    circuit = settings or CircuitSettings(folds=(48,))
    return PrecisionProblem(mg or trained().copy(), *rows(), circuit=circuit, **given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("device", [None, "ecp5-85"])
def test_the_estimate_of_a_choice_is_that_of_the_emitted_design(device):
    found = problem(settings=CircuitSettings((48,), DEVICES.get(device)))
    chosen = found.uniform("8.mse") | {"first.weight": "4.mse"}
    costs = found.compute_costs(chosen)
    quantized = found.graph(chosen)
    batch = next(iter(found.circuit.batches))
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    family = found.circuit.settings.family
    design = emit(integer, 48)
    measured = estimate_cost(design.netlist, design.connections, family)
    assert {name: costs[name] for name in measured.usage._asdict()} == measured.usage._asdict()
    assert costs["interval"] == design.interval == measured.interval
    assert costs["latency_us"] == measured.latency / 100 > measured.interval / 100
    assert design_cost(integer, 48, family) == measured
    assert list(costs) == list(COSTS)


def test_fewer_bits_take_less_and_more_cycles_fewer_parts():
    found = problem(settings=CircuitSettings((12, 48), DEVICES["ecp5-85"]))
    assert list(found.folds) == ["48", "12"] and "fold" in found.space.by_name
    narrow, wide = (found.compute_costs(found.uniform(text)) for text in ("4.mse", "8.mse"))
    assert narrow["lut"] < wide["lut"] and narrow["ff"] < wide["ff"]
    fast = found.compute_costs(found.uniform("8.mse", "12"))
    assert fast["dsp"] > wide["dsp"] and fast["interval"] < wide["interval"]
    assert fast["bits"] == wide["bits"]


def test_an_estimate_is_made_once():
    found = problem()
    chosen = found.uniform("4.mse")
    first = found.compute_costs(chosen)
    found.circuit.integers = None  # would be called for another
    assert found.compute_costs(chosen) == first


def test_the_answers_are_those_of_a_model_whose_other_operators_are_rounded_too():
    found = problem()
    assert set(found.layers.by_name) > set(found.layers.searched)
    assert set(found.layers.searched) == {"first", "inner", "last"}
    formats = found.formats(found.uniform("8.mse"))
    others = set(found.layers.by_name) - set(found.layers.searched)
    assert all(formats[name]["data_in"].key == parse_format_string("8.auto").key for name in others)
    assert found.compute_costs(found.uniform("8.mse"))["bits"] == 8


def test_the_default_fold_fits_the_device():
    device = DEVICES["ecp5-25"]
    found = problem(settings=CircuitSettings(device=device, varies_fold=True))
    folds = list(found.folds.values())
    assert folds == sorted(folds, reverse=True) and len(folds) > 2
    middle = found.circuit.design(found.formats(found.uniform("8.mse")), folds[len(folds) // 2])
    assert not excess(middle.usage, device)


def test_the_allocation_keeps_a_budget_of_lookup_tables():
    found = problem(settings=CircuitSettings((48,), DEVICES["ecp5-85"]))
    most = found.compute_costs(found.uniform("8.mse"))["lut"]
    least = found.compute_costs(found.uniform("4.mse"))["lut"]
    limit = Constraint("lut", (most + least) / 2)
    config = Allocation(found, [KL, limit]).solve(
        {(name, text): float(text == "4.mse") for name, text in found.pairs}
    )
    assert config is not None and found.compute_costs(config)["lut"] <= limit.bound
    assert "8.mse" in config.values()
    assert list(uniforms_within(found, [KL, limit])) == ["4.mse"]
    begun = warm_start(found, rows()[0], [KL, limit], 0)
    assert all(found.compute_costs(each)["lut"] <= limit.bound for each in begun.values()) and begun


def test_a_budget_that_is_out_of_reach_says_by_how_much():
    with pytest.raises(ConfigError, match=r"lut=10 cannot be met: .*, \d+.* beyond the budget"):
        Allocation(problem(), [KL, Constraint("lut", 10)])


def test_operators_without_a_circuit_are_named_before_a_search():
    with pytest.raises(ConfigError, match=r"in 8\.mse: .*diagonal.*rsqrt"):
        problem(graph())


FLOATS = MinifloatIEEE(8, 4)
"""Nothing of it has a circuit."""
ACROSS = MXInt(8, block_dim=0)
"""Blocks of several samples have none."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fmt", [FLOATS, ACROSS], ids=str)
def test_a_format_without_a_circuit_everywhere_is_told_and_others_are_searched(fmt):
    forget_notices()
    with pytest.warns(UserWarning, match="no circuit has .* in all layers"):
        found = problem(formats=("8.mse", fmt), ranges={})
    text = next(text for text in found.options if text != "8.mse")
    goals = [KL, Constraint("lut", found.compute_costs(found.uniform("8.mse"))["lut"])]
    with pytest.raises(NotANumberError):
        found.compute_costs(found.uniform(text))
    assert list(uniforms_within(found, goals)) == ["8.mse"]
    # Alone in the operand that blocks have a circuit in, the format may be had.
    of_inputs = found.uniform("8.mse") | {"first.data_in": text}
    has_one = isinstance(fmt, MXInt)
    assert (costs_if_any(found, of_inputs) is not None) == has_one
    for objectives in ([KL, Goal("lut", "minimize")], goals):
        begun = warm_start(found, rows()[0], objectives, 0)
        assert begun and all(costs_if_any(found, each) for each in begun.values())


@pytest.mark.long
def test_only_where_no_mix_has_a_circuit_the_search_is_refused(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"no combination .* circuit: first\.data_in in minifloat"
    ):
        problem(formats=(FLOATS,), ranges={})
    with pytest.raises(ConfigError, match=r"no combination .* circuit: inner\.data_in in mxint"):
        problem(formats=("ternary", ACROSS), ranges={})
    design = CircuitCosts.design

    def refuse_equal_weights(self, chosen, fold):
        of_weights = {chosen[name]["weight"].key for name in ("first", "last")}
        if len(of_weights) == 1 and "auto" not in of_weights.pop():
            raise ConfigError("equal weights")
        return design(self, chosen, fold)

    monkeypatch.setattr(CircuitCosts, "design", refuse_equal_weights)
    forget_notices()
    match = r"no circuit has 8\.mse or 4\.mse in all layers \(.*equal weights"
    with pytest.warns(UserWarning, match=match):
        found = problem()
    assert found.base()["last.weight"] == "4.mse" != found.base()["first.weight"]
    goals = [KL, Constraint("lut", 1e6)]
    assert uniforms_within(found, goals) == {}
    assert all(
        costs_if_any(found, each) for each in warm_start(found, rows()[0], goals, 0).values()
    )


def test_blocks_of_weights_alone_have_a_circuit():
    found = problem(formats=("8.mse", "mxint:width=4"), ranges={}, operands=("weight",))
    costs = found.compute_costs(found.uniform("mxint:width=4"))
    assert all(math.isfinite(costs[name]) for name in OF_CIRCUIT)


def test_a_choice_without_a_circuit_fails_its_trial_and_no_other(monkeypatch):
    found = problem()

    def refuse(*_):
        raise ConfigError("no circuit")

    monkeypatch.setattr(type(found.circuit), "design", refuse)
    with pytest.raises(NotANumberError, match="no circuit"):
        found.compute_costs(found.uniform("4.mse"))


def test_goals_of_a_circuit_need_one():
    found = PrecisionProblem(graph(), *rows(), ranges={"width": (4, 8)})
    with pytest.raises(ConfigError, match="expected the target of a circuit"):
        found.check_goals([Goal("lut", "minimize")])
    assert set(found.compute_costs(found.uniform("4.mse"))) == set(COSTS) - set(OF_CIRCUIT)
    assert (
        problem(settings=CircuitSettings((48,), DEVICES["ecp5-25"])).circuit.settings.family is ECP5
    )
