"""Settings of every registered format that the conformance checks are run on."""

from chop.formats import (
    FP8,
    MXFP,
    NF4,
    NVFP4,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    GroupAffine,
    GroupInteger,
    Integer,
    KQuant,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    Ternary,
    formats,
)
from chop.report import format_page

EXAMPLES = {
    "float": [Float()],
    "integer": [
        *(Integer(8, 4), Integer(4, 2), Integer(2, 0), Integer(8, -3), Integer(8, 12)),
        *(Integer(6, 3, is_signed=False), Integer(8, 4, floor=True), Integer(24, 16)),
    ],
    "minifloat_ieee": [
        *(MinifloatIEEE(8, 4), MinifloatIEEE(8, 5), MinifloatIEEE(6, 3), MinifloatIEEE(4, 2)),
        *(MinifloatIEEE(3, 1), MinifloatIEEE(8, 4, 11), MinifloatIEEE(8, 4, variant="finite")),
        *(MinifloatIEEE(16, 5), MinifloatIEEE(32, 8)),
    ],
    "minifloat_denorm": [
        MinifloatDenorm(8, 4),
        MinifloatDenorm(6, 2, 3),
        MinifloatDenorm(4, 2),
        MinifloatDenorm(16, 6),
    ],
    "log": [
        Log(8),
        Log(4, 3),
        Log(4, 3, nearest="linear"),
        Log(4, 3, zero_code=True),
        Log(5, 7, nearest="linear", zero_code=True),
        Log(2, 0),
    ],
    "block_fp": [
        BlockFP(8),
        BlockFP(4, 4, 3, block_size=[2, 16]),
        BlockFP(6, block_size=16, block_dim=0),
        BlockFP(12, block_size=[2, 16], skip_first_dim=True),
    ],
    "block_minifloat": [BlockMinifloat(8, 4), BlockMinifloat(6, 2, 4, block_size=[1, 32])],
    "block_log": [BlockLog(8), BlockLog(4, 4), BlockLog(16, block_size=7)],
    "mxint": [MXInt(), MXInt(4), MXInt(8, block_dim=0), MXInt(16, block_size=(4, 8)), MXInt(2)],
    "mxfp": [
        MXFP(),
        MXFP(8, 5),
        MXFP(6, 3),
        MXFP(6, 2),
        MXFP(4, 2),
        MXFP(4, 2, "ceil"),
        MXFP(8, 4, "even"),
    ],
    "k_quant": [KQuant(width) for width in (2, 3, 4, 5, 6)],
    "nf4": [NF4(), NF4(32), NF4(48, nested=True), NF4(table="fp4")],
    "nvfp4": [
        NVFP4(),
        NVFP4(block_size=32),
        NVFP4(tensor_scale=0.01),
        NVFP4(scale="mse"),
        NVFP4(scale="mse", tensor_scale=0.02),
    ],
    "scale_integer": [
        ScaleInteger(8),
        ScaleInteger(4, granularity="channel"),
        ScaleInteger(8, granularity="row"),
        ScaleInteger(4, granularity="group", group_size=48),
        ScaleInteger(8, quantile=0.9),
        ScaleInteger(8, is_signed=False),
        ScaleInteger(8, scales=(0.01,), is_symmetric=False),
    ],
    "fp8": [
        FP8(),
        FP8(5),
        FP8(granularity="channel"),
        FP8(granularity="row"),
        FP8(5, "group", 48),
        FP8(granularity="block", group_size=16),
        FP8(scales=(0.01,)),
    ],
    "group_affine": [
        GroupAffine(4),
        GroupAffine(3, group_size=32),
        GroupAffine(2, group_size=48),
        GroupAffine(6, group_size=16),
        GroupAffine(8, group_size=96),
    ],
    "group_integer": [
        GroupInteger(4),
        GroupInteger(2, group_size=16),
        GroupInteger(8, group_size=48),
    ],
    "binary": [
        Binary(),
        Binary(scaling_factor=True),
        Binary(bipolar=False),
        Binary(bipolar=False, scaling_factor=True),
        Binary(stochastic=True),
        Binary(stochastic=True, scaling_factor=True),
    ],
    "binary_residual": [
        BinaryResidual(),
        BinaryResidual(levels=3, scales=[4.0, 2.0, 1.0]),
        BinaryResidual(residual_sign=False),
        BinaryResidual(bipolar=False),
        BinaryResidual(stochastic=True),
    ],
    "ternary": [
        Ternary(),
        Ternary(scaling_factor=True),
        Ternary(max=True),
        Ternary(median=0.5),
        Ternary(threshold=0.5),
        Ternary(threshold=0.25, scaling_factor=True),
    ],
}


def list_examples(kind):
    """Those above; of a format that is not named there, what its search space suggests."""
    return EXAMPLES.get(kind.name) or format_page.list_examples(kind)


ALL = [fmt for kind in formats() for fmt in list_examples(kind)]
