"""Sharding rules of chop's operators: chunks of every format beside the whole, on processes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from chop.distributed.strategies import REFUSED, RULES, register_strategies, shardable_dims
from chop.errors import PlanError
from chop.formats import (
    NVFP4,
    Binary,
    BlockFP,
    Integer,
    Log,
    MinifloatIEEE,
    MXInt,
    NumberFormat,
    ScaleInteger,
    Ternary,
)
from tests.distributed import cluster
from tests.formats.examples import ALL
from tests.subcases import subcases

SHAPES = [(8, 4, 64), (6, 96), (40,)]
EVERY = {0: 1, 1: 1}


def values(shape: tuple[int, ...]) -> Tensor:
    """Numbers whose rows and columns have magnitudes of their own, so that scales differ."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for dim, size in enumerate(shape):
        steps = torch.linspace(-2, 2, size).exp2()
        x = x * steps.view([-1 if d == dim else 1 for d in range(len(shape))])
    return x


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def round_everything() -> list[tuple[str, tuple[int, ...], int, str, bool]]:
    """Per format, shape and dimension: the layout in which chunks were rounded, and equality."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    register_strategies()
    rows = []
    for index, number_format in enumerate(ALL):
        for shape in SHAPES:
            x = values(shape)
            torch.manual_seed(index)
            whole = number_format(x)
            for dim in range(len(shape)):
                torch.manual_seed(index)
                found = number_format(distribute_tensor(x, mesh, [Shard(dim)]))
                assert isinstance(found, DTensor)
                equal = same_bits(found.full_tensor(), whole)
                rows.append((number_format.key, shape, dim, str(found.placements[0]), equal))
    return rows


@functools.cache
def rounded(processes: int) -> dict[Any, tuple[set[str], bool]]:
    """(format, shape, dimension) -> (the layouts of the ranks, whether all equal the whole)."""
    found: dict[Any, tuple[set[str], bool]] = {}
    for rows in cluster.run(round_everything, processes):
        for key, shape, dim, layout, equal in rows:
            layouts, so_far = found.get((key, shape, dim), (set(), True))
            found[key, shape, dim] = layouts | {layout}, so_far and equal
    return found


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("number_format", ALL, ids=lambda fmt: fmt.label)
def test_chunks_round_as_the_whole_bit_for_bit(number_format: NumberFormat, processes: int):
    for shape in SHAPES:
        multiples = shardable_dims(number_format, shape)
        for dim, size in enumerate(shape):
            layouts, equal = rounded(processes)[number_format.key, shape, dim]
            chunk = -(-size // processes)
            sizes = {min(chunk, max(size - i * chunk, 0)) for i in range(processes)}
            fits = dim in multiples and all(size % multiples[dim] == 0 for size in sizes)
            if not number_format.is_deterministic:
                assert not multiples
            assert equal, (shape, dim)
            # Rounded where the chunks lie, or gathered first: nothing else is right.
            assert layouts == ({f"S({dim})"} if fits else {"R"}), (shape, dim)


@subcases(
    "number_format, expected",
    [
        (Integer(8, 4), EVERY),
        (Integer(8, "auto"), {}),
        (MinifloatIEEE(8, 4), EVERY),
        (Log(8), EVERY),
        (Binary(), EVERY),
        (Binary(scaling_factor=True), {0: 1}),
        (Binary(stochastic=True), {}),
        (Ternary(threshold=0.5), EVERY),
        (Ternary(), {}),
        (MXInt(8, block_size=32), {0: 1, 1: 32}),
        (MXInt(8, block_size=32, block_dim=0), {0: 32, 1: 1}),
        (MXInt(8, block_size=(4, 8)), {0: 4, 1: 8}),
        (BlockFP(8, block_size=[2, 16]), {0: 2, 1: 16}),
        (NVFP4(), {}),
        (ScaleInteger(8), {}),
        (ScaleInteger(8, granularity="channel"), {0: 1}),
        (ScaleInteger(8, granularity="row"), {0: 1}),
        (ScaleInteger(8, scales=[0.5]), EVERY),
    ],
    ids=lambda x: x.label if isinstance(x, NumberFormat) else "",
)
def test_dimensions_that_may_be_cut(number_format: NumberFormat, expected: dict[int, int]):
    assert shardable_dims(number_format, (64, 64)) == expected


def test_every_operator_has_a_rule():
    register_strategies()
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.removeprefix("chop::") for name in names if name.startswith("chop::")}
    assert ours == set(RULES)


def partial_and_refused() -> tuple[bool, dict[str, str], bool]:
    """Whether sums are reduced before they are rounded, what refusals say, given scales."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    register_strategies()
    part = values((6, 8)) / 3
    total = Integer(4, 2)(DTensor.from_local(part, mesh, [Partial()]))
    reduced = same_bits(total.full_tensor(), Integer(4, 2)(part + part))
    x = distribute_tensor(values((6, 8)), mesh, [Replicate()])
    scales = distribute_tensor(torch.ones(1), mesh, [Replicate()])
    codes = distribute_tensor(torch.zeros(8, dtype=torch.uint8), mesh, [Replicate()])
    key = ScaleInteger(8).key
    calls = {
        "attend": (x[None, None], x[None, None], x[None, None], 0, 1.0),
        "fake_quantize_marking": (x, key),
        "lsq_changed_gradients": (x, x, scales, key, False),
        "lsq_gradients": (x, x, scales, key, False),
        "onnx_round": (x, scales, -8, 7),
        "onnx_dequantize": (codes, scales, codes, 0),
        "onnx_decode": (codes.view(1, 1, 8), scales.view(1, 1, 1), None, 8),
        "onnx_matmul_4bit": (x, codes.view(8, 1, 1), scales.view(1, 1)),
        "onnx_gather_4bit": (codes.view(1, 8), codes, scales.view(1, 1)),
        "qonnx_quant": (x, scales, -8, 7, False),
        "qonnx_bipolar": (x, scales),
        "searched_scales": (x, -8),
    }
    said = {}
    for name, arguments in calls.items():
        try:
            getattr(torch.ops.chop, name)(*arguments)
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    by_channel = ScaleInteger(4, granularity="channel").key
    learned = torch.ops.chop.lsq_fake_quantize(
        distribute_tensor(values((6, 8)), mesh, [Shard(0)]),
        distribute_tensor(torch.linspace(0.1, 0.6, 6), mesh, [Shard(0)]),
        by_channel,
        False,
    )
    plain = torch.ops.chop.lsq_fake_quantize(
        values((6, 8)),
        torch.linspace(0.1, 0.6, 6),
        ScaleInteger(4, granularity="channel").key,
        False,
    )
    cut = str(learned.placements[0]) == "S(0)" and same_bits(learned.full_tensor(), plain)
    return reduced, said, cut


def test_sums_are_reduced_first_and_operators_of_training_are_refused():
    for reduced, said, cut in cluster.run(partial_and_refused, 2):
        assert reduced and cut
        assert set(said) == set(REFUSED)
        for name, text in said.items():
            assert REFUSED[name] in text and name in text, text


def attention_by_mask() -> list[str]:
    """The layouts of attention cut by samples and by heads, without a mask and with some."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    register_strategies()
    x = values((4, 4, 6)).unsqueeze(-1).expand(4, 4, 6, 8).contiguous()
    mask = torch.zeros(4, 1, 6, 6)
    mask[2:, :, :, 3:] = -torch.inf
    found = []
    for cut in (0, 1):
        masks = ((None, None), (mask, Replicate()), (mask, Shard(0)), (mask, Shard(2)))
        for given, place in masks:
            whole = torch.nn.functional.scaled_dot_product_attention(x, x, x, given)
            parts = [distribute_tensor(x, mesh, [Shard(cut)])] * 3
            part = None if given is None else distribute_tensor(given, mesh, [place])
            try:
                y = torch.nn.functional.scaled_dot_product_attention(*parts, part)
            except Exception as error:
                found.append(type(error).__name__ + str(error)[:60])
                continue
            assert torch.allclose(y.full_tensor(), whole, atol=1e-6)
            found.append(str(y.placements[0]))
    return found


def test_attention_is_cut_by_heads_and_by_samples_where_its_mask_is():
    for found in cluster.run(attention_by_mask, 2):
        samples, heads = found[:4], found[4:]
        # The mask stays as it is, so the others follow it.
        assert samples[:3] == ["S(0)", "R", "S(0)"]
        assert heads[:3] == ["S(1)", "S(1)", "S(0)"]
        assert all("attention mask (4, 1, 6, 6)" in text for text in (samples[3], heads[3]))


def test_refusals_are_plan_errors():
    for name in REFUSED:
        layouts, _, _ = RULES[name]
        with pytest.raises(PlanError, match=f"{name} has no sharding rule"):
            layouts()
