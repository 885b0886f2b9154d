"""What passes know about a node: typed attributes that can also be read as MASE's nested dicts.

`node.meta["mase"].common.args["data_in_0"].shape` and
`node.meta["mase"]["common"]["args"]["data_in_0"]["shape"]` are the same thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import GraphError
from chop.formats import NumberFormat
from chop.nn.quantized import QuantCall, QuantizedOperator


class Record(MutableMapping[str, Any]):
    """A dataclass whose attributes can also be read and written as keys.

    Keys that are no attribute are kept too: users' passes add their own.
    """

    def __getitem__(self, key: str) -> Any:
        try:
            return vars(self)[key]
        except KeyError:
            raise KeyError(f"{key!r}; there are {', '.join(vars(self)) or 'no entries'}") from None

    def __setitem__(self, key: str, value: Any) -> None:
        vars(self)[key] = value

    def __delitem__(self, key: str) -> None:
        del vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))


@dataclasses.dataclass(eq=False)
class TensorInfo(Record):
    """One argument or result of a node.

    Attributes:
        shape: sizes with the example inputs; () for a scalar.
        torch_dtype: dtype of the tensor; None for a Python scalar.
        type: name of its number format, as in MASE ("float", "integer" ...).
        precision: (width, frac_width) of an integer, (32,) of a float.
        value: the value itself, where it was asked for.
    """

    shape: tuple[int, ...] = ()
    torch_dtype: torch.dtype | None = None
    type: str = "float"
    precision: tuple[int, ...] = (32,)
    value: Any = None

    @classmethod
    def of(cls, value: Any, keep_value: bool = False) -> TensorInfo:
        """Describes a tensor or a Python number."""
        kept = value if keep_value else None
        if not isinstance(value, Tensor):
            return cls((), None, type(value).__name__, (32,), value)
        kept = kept if kept is None else kept.detach()
        info = cls(tuple(int(size) for size in value.shape), value.dtype, value=kept)
        info.precision = (value.dtype.itemsize * 8,)
        info.type = "float" if value.dtype.is_floating_point else str(value.dtype).split(".")[-1]
        return info

    @property
    def is_floating(self) -> bool:
        """True for tensors of real numbers: those that can be quantized."""
        return self.torch_dtype is not None and self.torch_dtype.is_floating_point

    def record_format(self, number_format: NumberFormat) -> None:
        """Notes the format that the tensor is quantized to, or that it is float again."""
        self.type = number_format.name
        if number_format.is_identity and self.torch_dtype is not None:
            self.precision = (self.torch_dtype.itemsize * 8,)
            return
        width = getattr(number_format, "width", None)
        fraction = getattr(number_format, "frac_width", None)
        if not isinstance(width, int):
            width = int(number_format.bits(self.shape))
        self.precision = (width, fraction) if isinstance(fraction, int) else (width,)


@dataclasses.dataclass(eq=False)
class CommonMetadata(Record):
    """What every pass may rely on.

    Attributes:
        mase_op: name of the operator, a row of the operator table or the function's own name.
        mase_type: `module_related_func`, `module`, `builtin_func`, `patched_func`, `placeholder`,
            `get_attr` or `output`.
        args: the node's inputs, `data_in_0` ... , `weight`, `bias`; constants by their own names.
        results: `data_out_0` ...
    """

    mase_op: str = ""
    mase_type: str = ""
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    results: dict[str, TensorInfo] = dataclasses.field(default_factory=dict)


def operand_of(argument: str, module: QuantizedOperator) -> str:
    """The operand of a quantized operator that an entry of `CommonMetadata.args` is.

    >>> from torch import nn
    >>> from chop.nn.quantized import QuantLinear
    >>> operand_of("data_in_0", QuantLinear(2, 2))
    'data_in'
    """
    if argument in ("weight", "bias"):
        return argument
    if isinstance(module, QuantCall):
        # Tensors are numbered in order; the second factor of a product is its "weight".
        operands = [name for name in module.arguments.values() if name is not None]
        position = int(argument.removeprefix("data_in_"))
        return operands[position] if position < len(operands) else "data_in"
    return "data_in"


class OpenRecord(Record):
    """Entries that passes agree upon among themselves."""


@dataclasses.dataclass(eq=False)
class MaseMetadata(Record):
    """`node.meta["mase"]`: three sections, one per audience."""

    common: CommonMetadata = dataclasses.field(default_factory=CommonMetadata)
    software: OpenRecord = dataclasses.field(default_factory=OpenRecord)
    hardware: OpenRecord = dataclasses.field(default_factory=OpenRecord)

    @property
    def parameters(self) -> MaseMetadata:
        """Itself: MASE keeps the same three entries one level deeper."""
        return self


def metadata_of(node: fx.Node) -> MaseMetadata:
    """`node.meta["mase"]`.

    Raises:
        GraphError: `init_metadata_analysis_pass` has not run.
    """
    if "mase" not in node.meta:
        raise GraphError(
            f"node '{node.name}' has no metadata: run init_metadata_analysis_pass and "
            "add_common_metadata_analysis_pass first."
        )
    metadata: MaseMetadata = node.meta["mase"]
    return metadata


@dataclasses.dataclass(frozen=True)
class Provenance:
    """One pass that a graph went through.

    Attributes:
        name: the pass.
        config: the settings it ran with, as text.
    """

    name: str
    config: str
