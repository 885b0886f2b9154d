"""Operators bound to formats, one module per operator: `from ...modules.linear import LinearMXInt`.

The classes may also be imported from here; the module that has one is imported then.
"""

from chop.nn.quantized.bound import MODULES
from chop.nn.quantized.bound import find_class as __getattr__

__all__ = list(MODULES)
