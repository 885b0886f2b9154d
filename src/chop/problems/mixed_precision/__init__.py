"""Mixed precision: search for the number format of each layer, and layer sensitivities."""

from chop.problems.mixed_precision.layer_sensitivity import sensitivity
from chop.problems.mixed_precision.problem import PrecisionProblem

__all__ = ["PrecisionProblem", "sensitivity"]
