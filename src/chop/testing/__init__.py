"""Conformance tests for extensions: the laws that chop's own formats, passes and samplers obey."""

from chop.testing.formats import check_format

__all__ = [
    "check_format",
]
