"""Mixed precision: a search for the number format of each layer, and sensitivities without one."""

from chop.problems.mixed_precision.layer_sensitivity import sensitivity
from chop.problems.mixed_precision.problem import PrecisionProblem

__all__ = ["PrecisionProblem", "sensitivity"]
