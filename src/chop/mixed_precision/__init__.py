"""Mixed precision: a search for the number format of each layer, and sensitivities without one."""

from chop.mixed_precision.problem import PrecisionProblem
from chop.mixed_precision.sensitivity import sensitivity

__all__ = ["PrecisionProblem", "sensitivity"]
