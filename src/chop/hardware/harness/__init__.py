"""Verilator harness: compiles a circuit to C++ and runs it with stalling streams."""

from chop.hardware.harness.build import verilate
from chop.hardware.harness.run import NotLoadedError, Outcome, Received, run_library

__all__ = ["NotLoadedError", "Outcome", "Received", "run_library", "verilate"]
