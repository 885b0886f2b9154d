"""Sharding plan search: node layouts, an integer program, and simulated forward passes."""

from __future__ import annotations

from chop.distributed.planning.autosharding import Sharding, find_sharding
from chop.distributed.planning.machine import Machine
from chop.distributed.planning.simulation import Simulation, simulate

__all__ = ["Machine", "Sharding", "Simulation", "find_sharding", "simulate"]
