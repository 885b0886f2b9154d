"""Number formats: one file per format, from which everything else is derived."""

from chop.formats.base import INPUT_OPERANDS, OPERANDS, REGISTRY, NumberFormat, formats
from chop.formats.binary import Binary
from chop.formats.binary_residual import BinaryResidual
from chop.formats.block_fp import BlockFP
from chop.formats.block_log import BlockLog
from chop.formats.block_minifloat import BlockMinifloat
from chop.formats.encoded import Encoded
from chop.formats.float import Float
from chop.formats.format_strings import format_string, parse_format_string
from chop.formats.fp8 import FP8
from chop.formats.group_affine import GroupAffine
from chop.formats.group_integer import GroupInteger
from chop.formats.integer import Integer
from chop.formats.k_quant import KQuant
from chop.formats.log import Log
from chop.formats.lsq import LearnableFormat, initial_scales, lsq_fake_quantize
from chop.formats.minifloat_denorm import MinifloatDenorm
from chop.formats.minifloat_ieee import MinifloatIEEE
from chop.formats.mxfp import MXFP
from chop.formats.mxint import MXInt
from chop.formats.nf4 import NF4
from chop.formats.nvfp4 import NVFP4
from chop.formats.parsing import from_key, get_format, parse_format, stored_settings
from chop.formats.quantizer import Gradient, Quantizer, StandIn
from chop.formats.scale_integer import ScaleInteger
from chop.formats.spec import QuantSpec
from chop.formats.statistic import even_sample
from chop.formats.ternary import Ternary

__all__ = [
    "FP8",
    "INPUT_OPERANDS",
    "MXFP",
    "NF4",
    "NVFP4",
    "OPERANDS",
    "REGISTRY",
    "Binary",
    "BinaryResidual",
    "BlockFP",
    "BlockLog",
    "BlockMinifloat",
    "Encoded",
    "Float",
    "Gradient",
    "GroupAffine",
    "GroupInteger",
    "Integer",
    "KQuant",
    "LearnableFormat",
    "Log",
    "MXInt",
    "MinifloatDenorm",
    "MinifloatIEEE",
    "NumberFormat",
    "QuantSpec",
    "Quantizer",
    "ScaleInteger",
    "StandIn",
    "Ternary",
    "even_sample",
    "format_string",
    "formats",
    "from_key",
    "get_format",
    "initial_scales",
    "lsq_fake_quantize",
    "parse_format",
    "parse_format_string",
    "stored_settings",
]
