"""Element types: sets of numbers before scaling, such as fixed point and minifloats."""

from chop.formats.elements.element import Element, Rounding
from chop.formats.elements.fixed import Fixed
from chop.formats.elements.log import Log2
from chop.formats.elements.lookup_table import LookupTable
from chop.formats.elements.minifloat import Denormal, Minifloat, Variant, default_variant
from chop.formats.elements.sign import Sign
from chop.formats.elements.trit import Trit

__all__ = [
    "Denormal",
    "Element",
    "Fixed",
    "Log2",
    "LookupTable",
    "Minifloat",
    "Rounding",
    "Sign",
    "Trit",
    "Variant",
    "default_variant",
]
