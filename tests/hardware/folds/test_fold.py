"""Folds for a device: the smallest interval that fits, then the smallest design."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions.emit.job import emit as emit_job
from chop.actions.emit.settings import EmitConfig
from chop.base.files import write_json
from chop.errors import ConfigError, VerificationError
from chop.hardware.check.emitted import check_emitted, read_folds
from chop.hardware.check.project import describe_project, write_design
from chop.hardware.costs import place
from chop.hardware.costs.devices import DEVICES, ECP5, RESOURCES, XC7, Device, parse_device
from chop.hardware.costs.estimate import design_usage, estimate, plan_usage
from chop.hardware.costs.logic import FORMULAS
from chop.hardware.costs.synth import synthesize
from chop.hardware.design import components
from chop.hardware.design.emit import UNFOLDED, emit
from chop.hardware.design.plan import RTL, Site
from chop.hardware.folds import fold
from chop.hardware.folds.fold import excess, fold_for
from chop.hardware.folds.fold_program import OUT_OF_TIME, Program
from chop.hardware.folds.foldable import Foldable
from chop.hardware.integer_form import integer_form
from chop.hardware.plans import constant_linear
from chop.hardware.plans.weighted import plan_linear
from chop.problems.mixed_precision.circuit import CircuitSettings
from chop.workloads.workload import Workload
from tests.hardware.bench import drawn
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.test_bert import lowered

NAMED = re.compile(r'module="(chop_\w+)"')
FIXED = {"config": {"name": "integer", "width": 8, "frac_width": 5}}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.out(h + torch.tanh(self.b(h)))


LAYERS = ("linear", "relu")
MODELS = {
    "chain": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), (6,), LAYERS),
    "residual": (Residual, (4,), (*LAYERS, "tanh", "add")),
    "image": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()),
        (1, 4, 4),
        ("conv2d", "relu"),
    ),
}


def integers(name):
    torch.manual_seed(0)
    make, shape, kinds = MODELS[name]
    model = make()
    argument = "x" if name == "residual" else "input"
    mg = MaseGraph(model, dummy_in={argument: torch.randn(3, *shape)})
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type"} | dict.fromkeys(kinds, FIXED))
    return integer_form(quantized)


def device(**counts):
    return Device("own", **({"lut": 10**6, "ff": 10**6, "dsp": 10**3, "bram": 10**3} | counts))


def brute_force(graph, interval, may_be_soft):
    """The least cost of the program by trying every choice."""
    program, best = Program(graph, interval, may_be_soft), None
    budget = [getattr(graph.device, name) for name in RESOURCES]
    for chosen in itertools.product(*program.options):
        total = sum(
            (torch.tensor(tuple(o.usage), dtype=torch.float64) for o in chosen),
            torch.zeros(4, dtype=torch.float64),
        )
        links = [
            program.link_usage(e, chosen[e.producer].sends, chosen[e.reader].reads[e.place])
            for e in program.edges
        ]
        if any(link is None for link in links):
            continue
        total += sum(
            (torch.tensor(tuple(u), dtype=torch.float64) for u in links),
            torch.zeros(4, dtype=torch.float64),
        )
        if all(taken <= there for taken, there in zip(total.tolist(), budget, strict=True)):
            cost = program.share(total.tolist())
            best = cost if best is None else min(best, cost)
    return best


def estimate_cost(program, chosen):
    graph = program.graph
    options = [chosen[part.node] for part in graph.nodes]
    total = [sum(x) for x in zip(*(o.usage for o in options), strict=True)]
    for e in program.edges:
        link = program.link_usage(e, options[e.producer].sends, options[e.reader].reads[e.place])
        total = [a + b for a, b in zip(total, link, strict=True)]
    return program.share(total)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("interval", [6, 24])
@pytest.mark.parametrize("counts", [{}, {"dsp": 6}, {"lut": 700}], ids=["large", "dsp", "lut"])
@pytest.mark.parametrize("may_be_soft", [False, True])
def test_the_program_finds_what_trying_every_choice_finds(name, interval, counts, may_be_soft):
    graph = Foldable(integers(name), device(**counts))
    program = Program(graph, interval, may_be_soft)
    expected = brute_force(graph, interval, may_be_soft) if all(program.options) else None
    chosen = program.solve(tuple(getattr(graph.device, resource) for resource in RESOURCES))
    assert (chosen is None) == (expected is None)
    if expected is not None:
        assert estimate_cost(program, chosen) == pytest.approx(expected, rel=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dsp", [4, 9])
def test_a_design_fits_and_is_no_slower_than_any_uniform_fold_that_fits(name, dsp):
    mg, own = integers(name), device(dsp=dsp)
    found = fold_for(mg, own)
    assert not excess(found.usage, own)
    design = emit(mg, found.fold, folds=found.folds, soft=found.soft)
    assert design.interval == found.interval
    for uniform in (1, 2, 3, 4, 6, 8, 12, 24):
        made = emit(mg, uniform)
        if not excess(design_usage(made.netlist, made.connections), own):
            assert found.interval <= 1.02 * made.interval + 1


@pytest.fixture
def without_constants(monkeypatch):
    """Layers have multipliers also where each weight is used in every cycle."""
    monkeypatch.setattr(constant_linear, "MOST_WEIGHTS", 0)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("without_constants")
@pytest.mark.parametrize(("name", "dsp"), [("chain", 14), ("residual", 9), ("image", 1)])
def test_products_beyond_the_multipliers_are_made_of_lookup_tables(name, dsp):
    mg, own = integers(name), device(dsp=dsp)
    found = fold_for(mg, own)
    assert found.soft and not excess(found.usage, own)
    assert found.interval == fold_for(mg, device()).interval
    made = emit(mg, found.fold, folds=found.folds, soft=found.soft)
    assert made.interval == found.interval
    assert design_usage(made.netlist, made.connections, own.family) == found.usage
    parts = made.netlist.instances
    soft = {part.node for part in parts if part.plan.resources.is_soft}
    assert all((part.row["soft_multipliers"] > 0) == (part.node in soft) for part in parts)
    assert estimate(p.plan for p in parts if p.node in soft).dsp == 0
    assert soft == found.soft and (found.usage.dsp > 0) == (name != "image")


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("without_constants")
@pytest.mark.parametrize("name", ["chain", "residual"])
def test_a_device_with_too_few_multipliers_for_one_lane_has_products_of_lookup_tables(name):
    mg, own = integers(name), device(dsp=1, lut=20_000)
    assert "dsp" in excess(design_usage(*_with_one_lane(mg), own.family), own)
    found = fold_for(mg, own)
    assert found.soft and found.usage.dsp <= 1 and not excess(found.usage, own)
    assert found.interval == fold_for(mg, device(dsp=0, lut=20_000)).interval


@pytest.mark.long
def test_constants_reach_an_interval_of_one_cycle_without_multipliers():
    found = fold_for(integers("chain"), device(dsp=2))
    assert found.interval == 1 and found.usage.dsp == 0 and not found.soft
    assert fold_for(integers("chain"), device(dsp=2, lut=900)).interval > 1


def _with_one_lane(mg):
    made = emit(mg, UNFOLDED)
    return made.netlist, made.connections


@pytest.mark.usefixtures("without_constants")
def test_products_of_lookup_tables_leave_room_to_the_router():
    """More of them would be faster, and fill the device."""
    mg = integers("chain")
    small, large = device(dsp=2, lut=1600), device(dsp=2)
    found = fold_for(mg, small)
    assert found.interval > fold_for(mg, large).interval
    assert not found.soft or found.usage.lut <= fold.ROUTABLE * small.lut


@pytest.mark.long
def test_attention_with_a_mask_is_folded():
    mg, own = lowered()[0], device(lut=12_000, dsp=50)
    found = fold_for(mg, own)
    assert not excess(found.usage, own) and found.interval < emit(mg, 2**62).interval
    design = emit(mg, found.fold, folds=found.folds, soft=found.soft)
    assert "chop_masked_softmax" in {part.module for part in design.netlist.instances}
    assert design.interval == found.interval
    assert design_usage(design.netlist, design.connections, own.family) == found.usage


def test_what_does_not_fit_says_by_how_much_and_which_device_it_fits():
    mg = integers("chain")
    with pytest.raises(ConfigError, match=r"2 multipliers of 1; the smallest device .* ice40-hx8k"):
        fold_for(mg, device(dsp=1, lut=500))
    with pytest.raises(ConfigError, match=r"lookup tables of 10\b"):
        fold_for(mg, device(lut=10))


@pytest.mark.usefixtures("without_constants")
def test_a_device_without_multipliers_makes_products_of_lookup_tables():
    """In the folds, in the estimate of a search and in the counts of Yosys alike."""
    mg = integers("chain")
    own = parse_device("lut=20000,dsp=0,bram=50")
    assert own.family == replace(XC7, dsp_width=0) == CircuitSettings(device=own).family
    found = fold_for(mg, own)
    made = emit(mg, found.fold, folds=found.folds, soft=found.soft)
    with_some = design_usage(made.netlist, made.connections, XC7)
    assert found.usage.dsp == 0 < with_some.dsp and found.usage.lut > with_some.lut
    assert found.interval == fold_for(mg, device()).interval
    assert Device("own", 9, 9, 0, 9, ECP5).family == replace(ECP5, dsp_width=0)
    assert not EmitConfig(device="lut=20000,dsp=0,bram=50").has_multipliers
    assert EmitConfig(device="lut=20000,dsp=1,bram=50").has_multipliers
    assert EmitConfig().has_multipliers and not EmitConfig(device="ice40-hx8k").has_multipliers


@pytest.mark.long
@pytest.mark.tools("yosys")
def test_multipliers_take_registers_of_the_module_around_in_synthesis(tmp_path):
    design = emit(integers("chain"), 3)
    write_design(design, tmp_path)
    counted = synthesize(tmp_path, describe_project(design))[-1]
    usage = design_usage(design.netlist, design.connections, XC7)
    assert counted["dsp"] == usage.dsp == 12
    # A fifth more where each product is a module of its own.
    assert counted["ff"] + counted["rom_ff"] == pytest.approx(usage.ff, rel=0.05)


@pytest.mark.long
@pytest.mark.tools("yosys")
def test_yosys_makes_products_of_lookup_tables_where_the_device_has_no_multipliers(tmp_path):
    design = emit(integers("chain"), 24)
    write_design(design, tmp_path)
    project = describe_project(design)
    rows = {
        has: synthesize(tmp_path, describe_project(design), has_multipliers=has)[-1]
        for has in (True, False)
    }
    assert rows[False]["dsp"] == 0 < rows[True]["dsp"]
    usage = {
        has: design_usage(design.netlist, design.connections, family)
        for has, family in ((True, XC7), (False, replace(XC7, dsp_width=0)))
    }
    assert rows[True]["dsp"] == usage[True].dsp
    for has in (True, False):
        taken = sum(rows[has][name] for name in ("lut", "lutram", "rom_lut"))
        assert usage[has].lut == pytest.approx(taken, rel=0.2)
    ecp5 = {}
    for has in (True, False):
        work = tmp_path / f"work-{has}"
        work.mkdir()
        place._synthesize(tmp_path, project.top, DEVICES["ecp5-25"].router, work, {}, has)
        ecp5[has] = (work / "netlist.json").read_text().count('"type": "MULT18X18D"')
    assert ecp5[True] == rows[True]["dsp"] and ecp5[False] == 0


@pytest.mark.parametrize(
    "text",
    [
        "ecp5",
        "lut=3",
        "lut=1,dsp=2,bram=x",
        "lut=1,dsp=2,bram=3,a=4",
        "lut=1,lut=2,dsp=2,bram=3",
        "",
        "lut=-1,dsp=2,bram=3",
    ],
)
def test_devices_that_there_are_not_are_refused(text):
    with pytest.raises(ConfigError, match="device: got"):
        parse_device(text)


def test_devices_come_the_smallest_first():
    sizes = [each.lut for each in DEVICES.values()]
    assert sizes == sorted(sizes) and all(parse_device(n) is d for n, d in DEVICES.items())


@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "yosys")
def test_an_emitted_circuit_keeps_its_folds(tmp_path):
    torch.manual_seed(0)
    x, labels = torch.randn(60, 6), torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    workload = Workload.of(model, (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu")
    config = EmitConfig(out=tmp_path / "out", device="lut=9000,dsp=9,bram=4", samples=2)
    config = replace(config, synthesis=False, icarus_samples=0, force=True, calibration_rows=30)
    found = emit_job(config, workload)
    taken = {row["resource"]: row["estimated"] for row in found["device"]}
    report = (tmp_path / "out" / "report.md").read_text()
    assert taken["dsp"] <= 9 and "Estimated for" in report
    assert "Counted with the cost tables of Xilinx 7 series." in report
    assert len(check_emitted(tmp_path / "out")) == 4
    folds = tmp_path / "out" / "folds.json"
    write_json(folds, {"fold": 1, "folds": {"a": 1}, "soft": ["b", 3]})
    with pytest.raises(VerificationError, match=r"soft nodes without a fold: \['3', 'b'\]"):
        read_folds(tmp_path / "out")
    write_json(folds, {"fold": 0, "folds": {}})
    with pytest.raises(VerificationError, match="folds.json"):
        check_emitted(tmp_path / "out")
    with pytest.raises(VerificationError, match="not a number of cycles"):
        read_folds(tmp_path / "out")


def test_a_fold_and_a_device_are_not_given_together():
    with pytest.raises(ConfigError, match="device, which chooses the folds"):
        EmitConfig(device="ecp5-85", fold=3)


def test_every_module_of_the_library_has_an_estimate():
    """What has no formula counts as a register: true of nothing that computes."""
    plans = Path(components.__file__).parents[1] / "plans"
    named = {name for file in plans.glob("*.py") for name in NAMED.findall(file.read_text())}
    rows = {row.module for row in components.COMPONENTS.values() if row.folder == RTL}
    assert {"chop_depthwise_conv", "chop_masked_softmax", "chop_ternary_linear"} <= named
    assert rows | named <= FORMULAS.keys()


def test_a_layer_without_multipliers_takes_an_adder_for_each_weight():
    operator = layer(16, 32, EDGE, (-1, 1))
    plan = plan_linear(Site(operator, [drawn(EDGE, 3, 32).stream], 24))
    usage = plan_usage(plan.module, plan, ECP5)
    # Counted by synth_ecp5 of Yosys 0.23: 2,307 lookup tables.
    assert plan.module == "chop_ternary_linear" and usage.dsp == 0
    assert usage.lut == pytest.approx(2307, rel=0.2)


def test_windows_send_the_taps_that_an_interval_needs():
    """A 3 x 3 kernel over 4 x 4 pixels: one tap in a cycle takes 144, and a pixel enters in one."""
    mg = integers("image")
    folds = [fold_for(mg, device(dsp=multipliers, lut=1400)) for multipliers in (18, 6)]
    made = [emit(mg, found.fold, folds=found.folds).netlist for found in folds]
    made.append(emit(mg, 144).netlist)
    taps = [each.instances[0].plan.parameters.get("TAP_LANES") for each in made]
    assert [each.interval for each in made] == [16, 48, 144] and taps == [9, 3, None]


def test_intervals_that_were_not_decided_in_time_are_told(monkeypatch):
    class Late:
        x, status = None, OUT_OF_TIME

    mg = integers("chain")
    decided = fold_for(mg, DEVICES["ecp5-85"])
    assert decided.undecided == ()
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: Late)
    monkeypatch.setattr(fold, "_uniform", lambda graph, interval: None)
    late = fold_for(mg, DEVICES["ecp5-85"])
    assert late.undecided and max(late.undecided) < late.interval
