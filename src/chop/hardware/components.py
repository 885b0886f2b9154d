"""Component table: the circuit of each integer operator.

An operator gets a circuit by one row here and one SystemVerilog file; its class in
`chop.nn.integer` is the specification.
"""

from __future__ import annotations

from torch import nn

from chop.hardware.plan import Component
from chop.hardware.plans.elementwise import plan_relu
from chop.nn.integer import IntegerReLU

COMPONENTS: dict[type[nn.Module], Component] = {
    IntegerReLU: Component("chop_relu", plan_relu),
}
"""By the class of the operator."""
