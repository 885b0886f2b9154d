"""Default sampler of searches."""

from chop.search.samplers.sensitivity import SensitivitySampler

__all__ = [
    "SensitivitySampler",
]
