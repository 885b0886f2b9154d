"""Plans that are found run: results, collectives and memory are those that were predicted."""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chop import MaseGraph, passes
from chop.distributed import process
from chop.distributed.apply import local_bytes, shard_graph
from chop.distributed.builtin_plans import PLANS
from chop.distributed.collectives import Collective, counted_collectives, totals
from chop.distributed.plan import ShardingPlan
from chop.distributed.planning import Machine, Sharding, find_sharding
from chop.distributed.planning.simulation import simulate
from chop.errors import PlanError
from chop.kernels.cpu.build import library
from chop.private.torch_api import TorchDispatchMode
from tests.distributed import cluster
from tests.distributed.graphs import MODELS, graph_of, list_inputs

MACHINES = {"fast": (100e12, 1.5e12, 100e9, 10e-6), "slow": (1e9, 1e12, 1e8, 1e-4)}
"""Operations and bytes of memory per second; of links bytes per second, and seconds per message.
On the slow one computing is worth sharing, and sending is worth avoiding."""

INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
PACKED = {
    "mxint": {"name": "mxint", "width": 8, "block_size": 8},
    "four": {
        "data_in": INTEGER,
        "weight": {"name": "integer", "width": 4, "frac_width": 3},
        "bias": INTEGER,
    },
}
FORWARDS = 3
"""That are profiled; of their peaks the least counts."""
SETTLE_SECONDS = 0.003
"""After each collective: gloo's threads free its buffers when they come to it, which is often after
the forward has gone on."""


@dataclass(frozen=True)
class Case:
    """A graph on a mesh.

    Attributes:
        file: the model, and "-" and its format where it is packed.
        mesh: of processes.
        share: the budget, of what a process needs that has everything; above 1: no budget.
        speed: of `MACHINES`.
        batch: samples.
        length: of texts.
    """

    file: str
    mesh: tuple[int, ...]
    share: float
    speed: str = "fast"
    batch: int = 4
    length: int = 8

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        return f"{self.file}-{mesh}-{self.share}-{self.speed}-{self.batch}-{self.length}"

    @property
    def inputs(self) -> dict[str, Any]:
        return list_inputs(self.file, self.batch, self.length)

    @property
    def machine(self) -> Machine:
        whole = Machine.of(self.mesh, *MACHINES[self.speed])
        if self.share > 1:
            return whole
        everything = PLANS["replicate"](graph(self.file), self.mesh)
        needed = simulate(graph(self.file), everything, self.inputs, whole).peak_bytes
        return replace(whole, memory_bytes=int(self.share * needed))


CASES = [
    Case("bert", (2,), 0.7),
]
LONG_CASES = [
    Case("bert", (2,), 2, "slow"),
    Case("opt", (2,), 0.8, batch=3, length=7),
    *(Case(name, (2,), 0.7) for name in MODELS if name != "bert"),
    *(Case(name, (4,), 0.5) for name in MODELS),
    *(Case(name, (2, 2), 0.7) for name in MODELS),
    Case("vit", (4,), 0.7, "slow"),
    Case("llama", (2, 2), 2, "slow"),
    Case("gpt2", (4,), 0.6, batch=3, length=7),
    Case("gpt2", (2,), 0.8, batch=3, length=7),
    Case("opt", (4,), 0.6, batch=3, length=7),
    Case("opt", (2, 2), 0.7, batch=3, length=7),
    Case("bert-160-four", (2,), 0.65),
    Case("bert-160-mxint", (2,), 0.6),
    Case("bert-160-mxint", (2,), 2, "slow"),
    Case("bert-160-four", (4,), 0.65),
    Case("bert-256-mxint", (2,), 0.65),
    Case("bert-256-four", (2,), 0.7),
]


@dataclass(frozen=True)
class Observed:
    """What one process has seen of a forward.

    Attributes:
        difference: the largest one from a single process.
        collectives: that it has called.
        parameter_bytes: of its parameters and buffers.
        activation_bytes: at the worst moment, as the profiler of torch has them.
    """

    difference: float
    collectives: list[Collective]
    parameter_bytes: int
    activation_bytes: int


@functools.cache
def graph(file: str) -> MaseGraph:
    """A model of `MODELS`; or BERT of a hidden size, as it is or packed: "bert-160-mxint"."""
    name, *others = file.split("-")
    if not others:
        return graph_of(name)
    size, kind = others
    if kind == "float":
        return wide_graph(int(size))
    mg, _ = passes.add_common_metadata_analysis_pass(wide_graph(int(size)).copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mg, _ = passes.quantize_transform_pass(
            mg, {"by": "type", "default": {"config": PACKED[kind]}}
        )
    return passes.pack_transform_pass(mg, {"silent": True})[0]


@functools.cache
def wide_graph(size: int) -> MaseGraph:
    """Of weights so large that codes are decoded when they are needed, and not kept decoded.

    Up to a size of 180 they are multiplied as decoded; beyond, by kernels.
    """
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * size,
        vocab_size=99,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    return MaseGraph(model, hf_input_names=list(list_inputs("bert", 3, 7)))


@functools.cache
def sharding(case: Case) -> Sharding:
    return find_sharding(graph(case.file), case.inputs, case.machine, compare=False)


def observe(cases: list[Case], folder: str) -> list[Observed]:
    """What this process sees of each case."""
    return [_observe(case, Path(folder)) for case in cases]


def _observe(case: Case, folder: Path) -> Observed:
    if "-" in case.file:
        library()  # what is not compiled decodes in steps, which need several times the memory
    mesh = process.start(case.mesh, "gloo")
    mg = MaseGraph.from_checkpoint(folder / case.file)
    mg.model.eval()
    inputs = case.inputs
    with torch.no_grad():
        expected = mg.model(**inputs)["logits"]
        shard_graph(mg, ShardingPlan.read(folder / f"{case}.json"), mesh)
        with counted_collectives() as sent:
            found = mg.model(**inputs)["logits"]
        difference = float((found - expected).abs().max())
        del found, expected
        file = folder / f"memory-{mesh.get_rank()}.json"
        with Settled():
            peak = min(profiled_peak(lambda: mg.model(**inputs), file) for _ in range(FORWARDS))
    return Observed(difference, totals(sent), local_bytes(mg.model), peak)


class Settled(TorchDispatchMode):
    """Goes on after a collective when the threads that ran it have had time to free its buffers."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops._c10d_functional.wait_tensor.default:
            time.sleep(SETTLE_SECONDS)
        return result


def profiled_peak(function: Any, file: Path) -> int:
    """The bytes that torch's allocator gives out at most at once, beside those of before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        marker = torch.empty(1)
        function()
        del marker
    profiler.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    memory = sorted((x for x in events if x.get("name") == "[memory]"), key=lambda x: x["ts"])
    levels = [x["args"]["Total Allocated"] for x in memory]
    return int(max(levels) - levels[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("plans")
    return made


def observed(case: Case, folder: Path) -> tuple[Observed, ...]:
    """What each process sees."""
    return _observed(math.prod(case.mesh), case in CASES, folder)[case]


@functools.cache
def _observed(processes: int, is_short: bool, folder: Path) -> dict[Case, tuple[Observed, ...]]:
    """All cases of the short suite, or of the long one, by the same processes."""
    chosen = CASES if is_short else LONG_CASES
    cases = [case for case in chosen if math.prod(case.mesh) == processes]
    for case in cases:
        sharding(case).plan.write(folder / f"{case}.json")
        if not (folder / case.file).exists():
            graph(case.file).export(folder / case.file)
    by_process = cluster.run(observe, processes, cases, str(folder), timeout=600)
    return dict(zip(cases, zip(*by_process, strict=True), strict=True))


def of_cases(cases: list[Case], long_cases: list[Case]) -> Any:
    long = [pytest.param(case, marks=pytest.mark.long) for case in long_cases]
    return pytest.mark.parametrize("case", [*cases, *long], ids=str)


@of_cases(CASES, LONG_CASES)
@pytest.mark.long
def test_outputs_equal_those_of_one_process(case: Case, folder: Path):
    for seen in observed(case, folder):
        assert seen.difference <= 1e-5


@of_cases(CASES, LONG_CASES)
@pytest.mark.long
def test_collectives_are_those_predicted(case: Case, folder: Path):
    predicted = {x.operation: x for x in sharding(case).simulation.collectives}
    assert predicted
    for seen in observed(case, folder):
        assert {x.operation: x for x in seen.collectives} == predicted


@of_cases(CASES, LONG_CASES)
@pytest.mark.long
def test_memory_is_that_predicted(case: Case, folder: Path):
    simulation = sharding(case).simulation
    for seen in observed(case, folder):
        assert seen.parameter_bytes == simulation.parameter_bytes
        needed = seen.parameter_bytes + seen.activation_bytes
        assert needed == pytest.approx(simulation.peak_bytes, rel=0.15)


@pytest.mark.long
@of_cases(CASES, LONG_CASES)
def test_budgets_cut_weights_and_slow_links_cut_samples(case: Case, folder: Path):
    plan = sharding(case).plan
    if case.share <= 1:
        assert sharding(case).simulation.peak_bytes <= (case.machine.memory_bytes or 0)
        assert any(set(places) != {"R"} for places in plan.parameters.values())
    else:
        assert not plan.parameters
        assert any("S0" in places for reads in plan.reads.values() for places in reads.values())


@of_cases([], [Case("bert-160-four", (2,), 0.65), Case("bert-160-mxint", (2,), 0.6)])
def test_floats_have_no_plan_in_the_memory_of_packed_models(case: Case):
    machine = replace(case.machine, memory_bytes=sharding(case).simulation.peak_bytes)
    with pytest.raises(PlanError, match="no plan on a mesh of 2 fits into"):
        find_sharding(graph("bert-160-float"), case.inputs, machine, compare=False)
