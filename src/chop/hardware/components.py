"""Component table: the circuit of each integer operator.

An operator gets a circuit by one row here and one SystemVerilog file; its class in
`chop.nn.integer` is the specification.
"""

from __future__ import annotations

from torch import nn

from chop.hardware.plan import Component

COMPONENTS: dict[type[nn.Module], Component] = {}
"""By the class of the operator."""
