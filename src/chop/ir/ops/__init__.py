"""The operator table; see `table` for its rows and `row` for what they say."""

from chop.ir.ops.dimensions import BlockedError, Call, RuleResult, UnitDim
from chop.ir.ops.row import Arguments, Kind, Operator, Weight, WeightArguments
from chop.ir.ops.table import (
    OPS,
    STANDARD_MODULES,
    TABLE,
    module_of_node,
    of_called,
    of_function,
    of_layer,
    of_module,
    of_node,
    quantizable_operators,
    register,
    stand_in_for,
    unregister,
)

__all__ = [
    "OPS",
    "STANDARD_MODULES",
    "TABLE",
    "Arguments",
    "BlockedError",
    "Call",
    "Kind",
    "Operator",
    "RuleResult",
    "UnitDim",
    "Weight",
    "WeightArguments",
    "module_of_node",
    "of_called",
    "of_function",
    "of_layer",
    "of_module",
    "of_node",
    "quantizable_operators",
    "register",
    "stand_in_for",
    "unregister",
]
