"""The passes by MASE's path `chop.passes.graph.interface`."""

from chop.passes.graph import __dir__ as __dir__
from chop.passes.graph import __getattr__ as __getattr__
