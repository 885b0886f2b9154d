"""Learned rounding of a walk: the codes of the graph in memory, and the same after a kill."""

import contextlib
import functools

import pytest
import torch

from chop import passes
from chop.ir.batches import select_inputs
from chop.quantization.rounding import learned as block_learning
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.learned import BlockLearning, Learning
from chop.quantization.walk import files as block_files
from chop.quantization.walk.blocks import BlockWalk
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.parts import get_parts
from chop.quantization.walk.weights import LazyWeights

from .test_walk import LAYERS, assert_goes_on, assert_same, rules, texts, with_rule

STEPS = 3


def walked(prepared, out, start="nearest", row_weights="uniform"):
    mg, blocks, read = prepared
    weights = LazyWeights(mg.model, read)
    batches = list(select_inputs(mg, texts(), "test"))
    parts, files = get_parts(mg, blocks), BlockFiles(out, {})
    walk = BlockWalk(mg, parts, weights, batches, files, runs_float=True)
    solver = Solver(actorder=True) if start == "gptq" else None
    learning = Learning(STEPS, 3, 0, solver, row_weights == "gradient")
    told = walk.run(BlockLearning(walk, learning, parts), lambda _: contextlib.nullcontext())
    walk.weights.load_rest()
    return mg, {path: errors for part in told for path, errors in part.report.items()}


def in_memory(prepared, start="nearest", row_weights="uniform"):
    mg, _, read = prepared
    LazyWeights(mg.model, read).load_rest()
    settings = {"batches": texts(), "steps": STEPS, "batch_size": 3}
    settings |= {"start": start, "row_weights": row_weights}
    mg, info = passes.learned_rounding_transform_pass(mg, settings, inplace=True)
    return passes.pack_transform_pass(mg, {"silent": True})[0], info["blocks"]


@pytest.mark.parametrize(
    "kind, tied, start, row_weights",
    [
        ("llama", False, "nearest", "uniform"),
        ("qwen2", True, "gptq", "uniform"),
        ("gpt2", True, "nearest", "gradient"),
        ("Mixtral", False, "gptq", "uniform"),
        ("Olmoe", False, "nearest", "uniform"),
        ("Qwen3Moe", False, "nearest", "gradient"),
        ("GptOss", False, "gptq", "uniform"),
    ],
)
@pytest.mark.sampled(1)
def test_codes_are_those_of_the_graph_in_memory(tmp_path, kind, tied, start, row_weights):
    rule = rules(*LAYERS, "expert_linear")
    expected, blocks = in_memory(with_rule(kind, rule, tied), start, row_weights)
    found, told = walked(with_rule(kind, rule, tied), tmp_path, start, row_weights)
    assert_same(found, expected)
    assert told == blocks
    assert len(told) == 2 + (not tied)
    # A few steps may find nothing that is better than what GPTQ has left.
    assert start == "gptq" or any(x["after"] < x["before"] for x in told.values())


MOMENTS = {
    "learning the second block": (block_learning, "learn_block", 2),
    "before the journal": (block_files.Journal, "add", 2),
    "half of the float values": (torch, "save", 8),
    "after the journal": (block_files.shutil, "rmtree", 5),
}


@pytest.mark.skipif(
    torch.version.cuda is not None,
    reason="autograd of a CUDA build starts threads, and does not run in a fork of their process",
)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.long
def test_a_killed_walk_goes_on_to_the_same_bytes(tmp_path, moment):
    prepared = with_rule("llama", rules(*LAYERS))
    assert_goes_on(tmp_path, functools.partial(walked, prepared), MOMENTS[moment])
