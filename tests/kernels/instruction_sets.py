"""Loops of one file, compiled for fewer instructions than this processor may have."""

import ctypes

import pytest

from chop.base import native
from chop.kernels.cpu import build

ONE_SET = "-DCHOP_ONE_INSTRUCTION_SET"
SETS = {
    "native": build.target(),
    "baseline": (ONE_SET,),
    "AVX2 by the compiler": (ONE_SET, "-march=x86-64-v3"),
    "AVX2": ('-DCHOP_TARGET="arch=x86-64-v3"', "-DCHOP_LEVEL=3"),
}


def one_set(name, source, loops):
    """The loops of one file alone: those that round take the compiler ten times longer."""
    if name not in ("baseline", "native") and loops.chop_instruction_set() == b"baseline":
        pytest.skip("this CPU has no AVX2")
    sources = native.Sources(source, (build.FOLDER / f"{source}.cpp",), build.SOURCES.headers)
    path = sources.compiled(native.compiler(), (*build.FLAGS, *SETS[name]))
    return build.Build(ctypes.CDLL(str(path)), "")
