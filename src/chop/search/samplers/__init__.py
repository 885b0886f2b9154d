"""Default sampler."""

from chop.search.samplers.sensitivity import SensitivitySampler

__all__ = [
    "SensitivitySampler",
]
