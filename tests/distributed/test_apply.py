"""Sharded graphs equal one process, in every plan, float and quantized."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.distributed import process
from chop.distributed.apply import local_bytes, shard_graph
from chop.distributed.builtin_plans import PLANS
from chop.errors import PlanError
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity.activation import PruneActivation
from tests.distributed import cluster
from tests.distributed.graphs import MODELS, graph_of, list_inputs, quantized

INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
MXINT = {"name": "mxint", "width": 8, "block_size": 8}
CHANNEL = {
    "data_in": INTEGER,
    "weight": {"name": "scale_integer", "width": 8, "granularity": "channel"},
    "bias": INTEGER,
}
SIZES = [(3, 7), (1, 5)]
"""Batch and length, odd both."""
EVEN = [(4, 7), (8, 5)]
"""Where samples are shared out."""
Case = tuple[str, str]
"""A graph's file and a plan."""
LEARNED = {**CHANNEL, "gradient": "lsq"}
KINDS = {"integer": INTEGER, "mxint": MXINT, "channel": CHANNEL, "learned": LEARNED}
FLOAT = [(model, plan) for model in MODELS for plan in PLANS]
CUT = ["rows", "megatron"]
EXACT = [(f"{model}-integer", plan) for model in ("bert", "vit") for plan in CUT]
OTHERS = [
    (f"bert-{kind}", plan)
    for kind in ("mxint", "channel", "learned", "frozen", "packed", "pruned")
    for plan in CUT
]
CASES: dict[tuple[int, ...], list[Case]] = {
    (2,): [
        *(("bert", "rows"), ("llama", "megatron"), ("bert-integer", "megatron")),
        *(("bert-mxint", "rows"), ("bert-learned", "megatron"), ("bert-packed", "megatron")),
    ],
}
"""By mesh."""
LONG_CASES: dict[tuple[int, ...], list[Case]] = {
    (2,): [case for case in FLOAT + EXACT + OTHERS if case not in CASES[(2,)]],
    (4,): FLOAT + EXACT,  # one head for each process
    (2, 2): [("bert", "megatron"), ("llama", "rows"), ("bert-integer", "megatron")],
}


def differences(mesh: tuple[int, ...], cases: list[Case], folder: str) -> list[tuple[float, float]]:
    """Of each case: the largest difference from one process, and this process's share of bytes."""
    device_mesh = process.start(mesh, "gloo")
    return [compare(case, device_mesh, Path(folder)) for case in cases]


def compare(case: Case, mesh: Any, folder: Path) -> tuple[float, float]:
    file, plan = case
    mg = MaseGraph.from_checkpoint(folder / file)
    mg.model.eval()
    sizes = EVEN if plan == "data" else SIZES
    inputs = [list_inputs(file, batch, length) for batch, length in sizes]
    with torch.no_grad():
        expected = [mg.model(**given)["logits"] for given in inputs]
        whole = local_bytes(mg.model)
        shard_graph(mg, PLANS[plan](mg, tuple(mesh.shape)), mesh)
        found = [mg.model(**given)["logits"] for given in inputs]
    assert {type(logits) for logits in found} == {torch.Tensor}
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs), local_bytes(mg.model) / whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("graphs")
    return made


def compressed(name: str, kind: str) -> MaseGraph:
    """A model in a format of `KINDS`, packed, pruned, or with the scales that it has learned."""
    if kind == "pruned":
        weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
        return passes.prune_transform_pass(quantized(name, INTEGER), {"weight": weight})[0]
    if kind == "packed":
        return passes.pack_transform_pass(quantized(name, MXINT), {"silent": True})[0]
    mg = quantized(name, LEARNED if kind == "frozen" else KINDS[kind])
    # Scales that are learned start from a batch.
    mg = passes.calibrate_transform_pass(mg, {"batches": [list_inputs(name, *SIZES[0])]})[0]
    for node in mg.nodes if kind == "frozen" else ():
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator):
            mg.replace(node, module.freeze_scales())
    return mg


def measured(mesh: tuple[int, ...], case: Case, folder: Path) -> list[tuple[float, float]]:
    """What `differences` gives of a case: one pair for each process."""
    return _measured(mesh, case in CASES.get(mesh, ()), folder)[case]


@functools.cache
def _measured(
    mesh: tuple[int, ...], is_short: bool, folder: Path
) -> dict[Case, list[tuple[float, float]]]:
    """All cases of the short suite, or of the long one, by the same processes."""
    cases = (CASES if is_short else LONG_CASES)[mesh]
    for file in {file for file, _ in cases if not (folder / file).exists()}:
        name, _, kind = file.partition("-")
        (compressed(name, kind) if kind else graph_of(name)).export(folder / file)
    by_process = cluster.run(differences, math.prod(mesh), mesh, cases, str(folder))
    return dict(zip(cases, map(list, zip(*by_process, strict=True)), strict=True))


def each(*kinds: list[Case]) -> Any:
    """Cases of some kinds on all meshes that have them."""
    wanted = {case for kind in kinds for case in kind}
    found = [
        pytest.param(mesh, case, marks=marks)
        for by_mesh, marks in ((CASES, ()), (LONG_CASES, pytest.mark.long))
        for mesh, cases in by_mesh.items()
        for case in cases
        if case in wanted
    ]
    return pytest.mark.parametrize(
        ("mesh", "case"), found, ids=lambda x: "-".join(map(str, x)) if isinstance(x, tuple) else x
    )


@pytest.mark.long
@each(FLOAT)
def test_float_graphs_equal_one_process(mesh: tuple[int, ...], case: Case, folder: Path):
    for difference, share in measured(mesh, case, folder):
        assert difference <= 1e-5
        assert share == 1 if case[1] in ("replicate", "data") else share < 0.75


@each(EXACT)
def test_integers_of_eight_bits_are_exactly_equal(mesh: tuple[int, ...], case: Case, folder: Path):
    for difference, share in measured(mesh, case, folder):
        assert difference == 0
        assert share < 0.75


@each(OTHERS)
def test_other_formats_differ_by_the_order_of_sums(mesh: tuple[int, ...], case: Case, folder: Path):
    for difference, share in measured(mesh, case, folder):
        assert difference <= 1e-4
        assert share < 0.8


def test_scales_that_wait_for_a_batch_and_random_masks_are_refused():
    random = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    random.model.add_module("1", PruneActivation(0.5, "random"))
    cases = {
        r"learned scales of its weight are not initialized; run": quantized("bert", LEARNED),
        r"'1' prunes activations at random, which has no sharding rule": random,
    }
    mesh = process.start((1,), "gloo")
    try:
        for message, mg in cases.items():
            with pytest.raises(PlanError, match=message):
                shard_graph(mg, PLANS["rows"](mg, (1,)), mesh)
    finally:
        torch.distributed.destroy_process_group()
