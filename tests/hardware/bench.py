"""One-operator designs in Icarus Verilog, compared with the operator; lint and elaboration of each.

::

    check(IntegerReLU(edge), drawn(edge, 17, 12), fold=51)
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from chop.hardware import profiles as stalls
from chop.hardware import tools
from chop.hardware.components import COMPONENTS
from chop.hardware.design import Design
from chop.hardware.emit import emit
from chop.hardware.emitted import write_circuit
from chop.hardware.plan import RTL, ComponentPlan, Memory, Site
from chop.hardware.port import Port
from chop.hardware.project import project_of
from chop.hardware.stream import Stream
from chop.hardware.testbench import (
    VECTORS,
    BenchRun,
    compile_testbench,
    run_testbench,
    testbench,
    vectors,
)
from chop.hardware.vectors import codes_of
from chop.hardware.verify import Check, check_sources, run_check
from chop.hardware.verilog import instance, sources
from chop.integer.golden import golden_values

PROFILES = tuple(profile.name for profile in stalls.PROFILES)
TOOLS = ("iverilog", "verilator", "yosys")
needs_tools = pytest.mark.tools(*TOOLS)


class Driven(NamedTuple):
    """Samples that enter by a stream: codes (samples, *stream.shape), int64."""

    stream: Stream
    codes: Tensor


def drawn(edge, *shape, samples=5, seed=0, lanes=1, positions=None) -> Driven:
    """Random codes of an edge, the extremes among them.

    Args:
        edge: what the codes mean.
        shape: of one sample.
        samples: how many.
        seed: of the codes.
        lanes: that the producer sends; the plan may ask for others.
        positions: places in the stream, as in `Stream`; in order by default.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(edge.low, edge.high + 1, (samples, *shape), generator=generator)
    flat = codes.view(-1)
    places = torch.randperm(flat.numel(), generator=generator)[: max(flat.numel() // 8, 2)]
    flat[places] = torch.tensor([edge.low, edge.high]).repeat(len(places))[: len(places)]
    stream = Stream.in_order(shape, edge, lanes)
    if positions is not None:
        stream = Stream(positions, edge, lanes)
    return Driven(stream, codes)


def check(
    operator, *inputs: Driven, fold=1, profiles=PROFILES, samples=None, kept=None, is_soft=False
) -> ComponentPlan:
    """Asserts that the circuit of an operator computes what the operator computes, in its time.

    The cycles between samples without stalls are the plan's; the rest is that of `simulate`.
    """
    plan, runs = simulate(
        operator, *inputs, fold=fold, profiles=profiles, samples=samples, kept=kept, is_soft=is_soft
    )
    left = runs["none"].left["data_out_0"] if "none" in runs else []
    if len(left) > 1:
        check_interval(left, plan.cycles)
    return plan


def simulate(
    operator, *inputs: Driven, fold=1, profiles=PROFILES, samples=None, kept=None, is_soft=False
) -> tuple[ComponentPlan, dict[str, BenchRun]]:
    """Asserts that the circuit of an operator computes what the operator computes.

    Every output code under each profile of stalls equals `operator.forward`; Verilator and Yosys
    have no complaint.

    Args:
        operator: with a row in `COMPONENTS`.
        inputs: what enters, by `drawn` or `Driven(stream, codes)`.
        fold: most cycles for a sample, as in `Site`.
        profiles: of stalls.
        samples: how many; needed where there are no inputs.
        kept: how the last input, (1, 1, keys), becomes the mask of a softmax.
        is_soft: as in `Site`.
    Returns: the plan, and the runs by profile.
    """
    component = COMPONENTS[type(operator).__name__]
    plan = component.plan(Site(operator, [stream for stream, _ in inputs], fold, kept, is_soft))
    given = [codes for _, codes in inputs]
    given = given if kept is None else [*given[:-1], kept(given[-1].flatten(1))]
    expected = operator(*given)
    if samples is not None:
        expected = expected.expand(samples, *plan.out.shape)
    assert expected.shape[1:] == plan.out.shape
    edge = plan.out.edge
    assert edge.low <= expected.min() and expected.max() <= edge.high
    streams = [stream.with_lanes(n) for (stream, _), n in zip(inputs, plan.lanes, strict=True)]
    sent = {
        Port.of(f"data_in_{k}", stream, True): stream.sent(codes)
        for k, (stream, (_, codes)) in enumerate(zip(streams, inputs, strict=True))
    }
    sent[Port.of("data_out_0", plan.out, False)] = plan.out.sent(expected)
    files = {key: f"memory/{key.lower()}.hex" for key in plan.memories}
    memories = {files[key]: memory for key, memory in plan.memories.items()}
    parameters = {**plan.parameters, **files}
    module = plan.module or component.module
    return plan, check_module(module, parameters, sent, memories, profiles, component.folder)


def check_graph(integer, batch, fold, folder, simulator="icarus") -> tuple[Design, Tensor]:
    """Asserts that the circuit of a graph of integers computes what the graph does.

    Args:
        integer: the graph, of one output.
        batch: its inputs by name.
        fold: most cycles for a sample.
        folder: an empty one.
        simulator: that runs the circuit under each profile of stalls.
    Returns: the circuit, and the output.
    """
    design = emit(integer, fold=fold)
    project, golden = project_of(design), golden_values(integer, batch)
    codes = codes_of(project, golden)
    write_circuit(design, codes, folder)
    check_sources(folder, project)
    (outputs,) = (value for name, value in golden.items() if name.startswith("outputs."))
    for profile in stalls.PROFILES:
        found = run_check(folder, project, codes, Check(simulator, profile, len(outputs), 1))
        assert found.equal == outputs.numel()
    return design, outputs


def check_interval(left, cycles):
    """Asserts that samples leave as often as planned, after the first ones: within 3 %, or 2."""
    first = len(left) // 2 - 1 if len(left) < 4 else len(left) // 2
    interval = (left[-1] - left[first]) / (len(left) - 1 - first)
    assert abs(interval - cycles) <= max(2, 0.03 * cycles), (interval, cycles, left)


def check_module(
    module, parameters, sent: dict[Port, Tensor], memories=None, profiles=PROFILES, folder=RTL
) -> dict[str, BenchRun]:
    """Asserts that a module with the ports of a component turns beats into expected beats.

    Args:
        module: its name.
        parameters: by name.
        sent: int64 (samples * beats, lanes) for each port.
        memories: `Memory` by file.
        profiles: of stalls.
        folder: of the source.
    Returns: the runs by profile.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        text = _top(module, parameters, list(sent))
        files = _written(work, text, sent, memories or {}, folder)
        lint(work, files)
        bench = [*files, *sources((work / "testbench.sv").read_text()).values()]
        compile_testbench(work, [*dict.fromkeys(bench), "testbench.sv"], "bench.vvp")
        runs = {profile: run_testbench(work, "bench.vvp", profile) for profile in profiles}
    for profile, run in runs.items():
        assert run.passed, f"{profile}:\n{run.log}"
    return runs


def _top(module, parameters, ports):
    """A module `top` with one instance."""
    signals = ["input logic clk_i", "input logic rst_ni"]
    connections = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    for port in ports:
        ahead, back = ("input", "output") if port.is_input else ("output", "input")
        data, valid, ready = port.signals
        signals += [f"{ahead} logic [{port.bits - 1}:0] {data}"]
        signals += [f"{ahead} logic {valid}", f"{back} logic {ready}"]
        connections |= {signal: signal for signal in port.signals}
    body = instance(module, "u_operator", parameters, connections)
    joined = ",\n  ".join(signals)
    return f"module top (\n  {joined}\n);\n{body}endmodule\n"


def _written(work, text, sent, memories: dict[str, Memory], folder):
    """Writes sources, memories and vectors; returns the paths of the design's sources."""
    (work / VECTORS).mkdir()
    (work / "memory").mkdir()
    (work / "top.sv").write_text(text)
    for file, memory in memories.items():
        (work / file).write_text(memory.hex())
    samples = 1
    for port, beats in sent.items():
        samples = len(beats) // port.beats
        assert len(beats) == samples * port.beats and beats.shape[1] == port.lanes
        (work / VECTORS / f"{port.name}.hex").write_text(vectors(port, beats))
    (work / "testbench.sv").write_text(testbench("top", list(sent), samples))
    return [*sources(text, folder).values(), "top.sv"]


def lint(work, files):
    """Asserts that neither Verilator nor Yosys has a complaint."""
    paths = [work / file for file in files]
    messages = tools.lint(paths, "top") + tools.elaborate(paths, "top", work)
    assert not messages, messages
