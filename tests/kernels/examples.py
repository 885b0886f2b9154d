"""Formats that kernels take and do not take, and tensors to round."""

import pytest
import torch

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    Ternary,
)

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, NAN, INF, -INF, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1.0, -0.5])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

BINARY = Binary(scaling_factor=True)
TAKEN = [
    *(Integer(8, 4), Integer(4, -3), Integer(2, 0), Integer(24, 30), Integer(28, 10)),
    *(Integer(8, 120), Integer(8, -120), Integer(6, 3, is_signed=False)),
    *(Integer(24, 10, is_signed=False), Integer(8, 4, floor=True), Integer(30, 4, floor=True)),
    Integer(8, "minmax"),
    *(MinifloatIEEE(8, 4), MinifloatIEEE(8, 5), MinifloatIEEE(4, 2), MinifloatIEEE(3, 1)),
    *(MinifloatIEEE(16, 5), MinifloatIEEE(32, 8), MinifloatIEEE(8, 4, 150)),
    MinifloatIEEE(8, 5, -200),
    *(MinifloatDenorm(8, 4), MinifloatDenorm(4, 2, 200), MinifloatDenorm(3, 1)),
    *(Log(8), Log(4, 3), Log(2, 0), Log(32), Log(4, 3, nearest="linear")),
    *(Log(4, 3, zero_code=True), Log(5, 7, nearest="linear", zero_code=True)),
    *(Binary(), Binary(bipolar=False)),
    *(BlockFP(8), BlockFP(2, 1), BlockFP(8, block_size=32), BlockFP(32, 8, -256, block_size=7)),
    *(BlockFP(4, 4, 3, block_size=[2, 16]), BlockFP(6, block_dim=0)),
    *(BlockFP(6, block_dim=1, skip_first_dim=True), BlockFP(6, block_size=[16, 16])),
    *(BlockFP(6, block_size=[3, 5]), BlockFP(6, block_size=[2, 300])),
    *(BlockFP(6, block_size=[2, 2, 4]), BlockFP(6, block_size=[2, 4], block_dim=0)),
    BlockMinifloat(8, 4, block_dim=-2),
    BlockLog(5, block_size=7, block_dim=1),
    *(BlockMinifloat(8, 4), BlockMinifloat(6, 2, 4, block_size=[1, 32])),
    *(BlockLog(8), BlockLog(4, 4, block_size=32), BlockLog(32, block_size=7)),
    *(MXInt(), MXInt(4, block_size=16), MXInt(32, block_size=1), MXInt(8, block_dim=0)),
    *(MXFP(), MXFP(8, 5), MXFP(6, 3), MXFP(4, 2, "ceil"), MXFP(8, 4, "ceil"), MXFP(8, 4, "even")),
    MXFP(6, 2, "even", block_size=20000),
    *(NVFP4(), NVFP4(block_size=32), NVFP4(block_dim=0)),
    *(ScaleInteger(8), ScaleInteger(4, granularity="channel"), ScaleInteger(8, granularity="row")),
    ScaleInteger(4, granularity="group", group_size=16),
    *(ScaleInteger(8, granularity="group", group_size=100), ScaleInteger(8, is_signed=False)),
    *(ScaleInteger(4, is_signed=False, granularity="row"), ScaleInteger(8, quantile=0.9)),
    ScaleInteger(8, quantile=0.5, is_signed=False),
    ScaleInteger(4, quantile=0.99, granularity="channel"),
    ScaleInteger(4, quantile=0.7, granularity="group", group_size=24),
    *(ScaleInteger(8, scales=(0.25,)), ScaleInteger(4, scales=(0.5,), granularity="channel")),
    BINARY,
    Binary(bipolar=False, scaling_factor=True),
    *(Ternary(), Ternary(scaling_factor=True), Ternary(max=True, scaling_factor=True)),
    *(Ternary(median=0.5), Ternary(mean=1.0, scaling_factor=True), Ternary(threshold=0.25)),
    *(Ternary(threshold=-0.0, scaling_factor=True), Ternary(scales=(0.5,), scaling_factor=True)),
    *(Ternary(median=True), Ternary(median=True, scaling_factor=True)),
    *(BinaryResidual(), BinaryResidual(levels=3, bipolar=False), BinaryResidual(levels=8)),
    BinaryResidual(residual_sign=False),
    BinaryResidual(levels=4, scales=(1.5, -0.25, 0.0, 0.125)),
]
NOT_TAKEN = [
    Float(),
    Binary(stochastic=True),
    BinaryResidual(stochastic=True),
    BinaryResidual(levels=1, scales=(1e300,)),
]


def params(formats):
    return [pytest.param(fmt, id=fmt.label.replace(" ", "-")) for fmt in formats]


def same(a, b):
    """Equal bit for bit, all NaN being alike."""
    equal = (a == b) & (a.signbit() == b.signbit())
    return bool((equal | (a.isnan() & b.isnan())).all())


def any_bits(*shape):
    return torch.randint(-(2**31), 2**31, shape).to(torch.int32).view(torch.float32)


def inputs(dtype):
    """Plain and wild numbers in shapes that blocks fit into, and others."""
    edges = EDGES.repeat(9)
    shapes = [torch.tensor(-1.3), torch.randn(99), torch.randn(5, 37), torch.randn(2, 3, 4, 48)]
    wild = [any_bits(40, 96), any_bits(61, 33), edges, edges.view(9, 12), torch.zeros(2, 40)]
    finite = any_bits(64, 80).nan_to_num(1.0, 1.0, 1.0)
    near_ties = (torch.randint(-40, 41, (31, 64)) / 2.0).nextafter(torch.randn(31, 64))
    halves = torch.randint(-40, 41, (64, 64)) / 16.0
    return [x.to(dtype) for x in (*shapes, *wild, finite, near_ties, halves)]
