"""Which Python function computes each kind of size expression at run time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from torch.utils._sympy import functions as size_functions

# How each kind of size expression is computed at run time: one Python function per sympy class.
COMPUTE: Mapping[type, Callable[..., Any]] = {
    sympy.Pow: operator.pow,
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
    sympy.Not: operator.not_,
    size_functions.FloorDiv: operator.floordiv,
    size_functions.CleanDiv: operator.floordiv,
    size_functions.Mod: operator.mod,
    size_functions.PythonMod: operator.mod,
    size_functions.IntTrueDiv: operator.truediv,
    size_functions.FloatTrueDiv: operator.truediv,
    size_functions.PowByNatural: operator.pow,
    size_functions.FloatPow: operator.pow,
    size_functions.ToFloat: float,
    size_functions.TruncToInt: int,
    size_functions.TruncToFloat: math.trunc,
    size_functions.FloorToInt: math.floor,
    size_functions.CeilToInt: math.ceil,
    size_functions.RoundToInt: round,
    size_functions.RoundDecimal: round,
    size_functions.OpaqueUnaryFn_sqrt: math.sqrt,
    size_functions.OpaqueUnaryFn_log2: math.log2,
    size_functions.OpaqueUnaryFn_log: math.log,
    size_functions.OpaqueUnaryFn_exp: math.exp,
}

PAIRWISE: Mapping[type, Callable[[Any, Any], Any]] = {
    sympy.Mul: operator.mul,
    size_functions.Max: max,
    size_functions.Min: min,
    sympy.And: operator.and_,
    sympy.Or: operator.or_,
}
