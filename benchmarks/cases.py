"""Number formats in their usual settings, which several benchmarks measure."""

from __future__ import annotations

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    NumberFormat,
    QuantSpec,
    ScaleInteger,
    Ternary,
)

FORMATS: list[NumberFormat] = [
    Integer(8, 4),
    MinifloatIEEE(8, 4),
    MinifloatIEEE(8, 5),
    MinifloatDenorm(8, 4),
    Log(8),
    Binary(),
    Binary(scaling_factor=True),
    BinaryResidual(),
    BinaryResidual(levels=3),
    Ternary(),
    Ternary(scaling_factor=True),
    Ternary(median=True),
    ScaleInteger(8),
    ScaleInteger(8, granularity="channel"),
    ScaleInteger(8, granularity="row"),
    ScaleInteger(4, granularity="group"),
    BlockFP(8),
    BlockFP(8, block_size=(16, 16)),
    BlockMinifloat(8, 4),
    BlockLog(8),
    MXInt(8),
    MXInt(8, block_dim=0),
    MXInt(4),
    MXFP(8, 4),
    MXFP(6, 3),
    MXFP(4, 2),
    NVFP4(),
]
"""Of fake-quantizers."""
ROW = ScaleInteger(8, granularity="row")
SPECS = {
    "MXINT8": QuantSpec(weight=MXInt(8)),
    "MXINT8, inputs too": QuantSpec(data_in=MXInt(8), weight=MXInt(8)),
    "MXINT4": QuantSpec(weight=MXInt(4)),
    "MXFP8 e4m3": QuantSpec(weight=MXFP(8, 4)),
    "MXFP4": QuantSpec(weight=MXFP(4, 2)),
    "NVFP4": QuantSpec(weight=NVFP4()),
    "block_fp 8": QuantSpec(weight=BlockFP(8)),
    "ternary": QuantSpec(weight=Ternary(scaling_factor=True)),
    "int8 by channel": QuantSpec(weight=ScaleInteger(8, granularity="channel")),
    "int8, inputs by row": QuantSpec(data_in=ROW, weight=ScaleInteger(8, granularity="channel")),
    "integer 8.8, inputs 8.5": QuantSpec(data_in=Integer(8, 5), weight=Integer(8, 8)),
}
"""Of packed linear layers, by name."""
