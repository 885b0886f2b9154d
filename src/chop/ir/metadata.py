"""Node metadata: typed attributes, also readable as MASE's nested dicts.

`node.meta["mase"].common.args["data_in_0"].shape` and
`node.meta["mase"]["common"]["args"]["data_in_0"]["shape"]` are equivalent.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError, describe
from chop.formats import NumberFormat
from chop.nn.quantized import QuantCall, QuantizedOperator


class Record(MutableMapping[str, Any]):
    """Dataclass whose attributes can also be read and written as keys.

    Other keys are stored as well, for entries of users' passes.
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
    """Metadata of one argument or result of a node.

    Attributes:
        shape: sizes with the example inputs; () for a scalar.
        torch_dtype: dtype of the tensor; None for a Python scalar.
        type: name of its number format, as in MASE ("float", "integer" ...).
        precision: (width, frac_width) of an integer, (32,) of a float.
        value: the value, if requested.
    """

    shape: tuple[int, ...] = ()
    torch_dtype: torch.dtype | None = None
    type: str = "float"
    precision: tuple[int, ...] = (32,)
    value: Any = None

    @classmethod
    def of(cls, value: Any, keep_value: bool = False) -> TensorInfo:
        """Describes a tensor or a Python number."""
        stored = value if keep_value else None
        if not isinstance(value, Tensor):
            return cls((), None, type(value).__name__, (32,), value)
        stored = stored if stored is None else stored.detach()
        info = cls(tuple(int(size) for size in value.shape), value.dtype, value=stored)
        info.precision = (value.dtype.itemsize * 8,)
        info.type = "float" if value.dtype.is_floating_point else str(value.dtype).split(".")[-1]
        return info

    @property
    def is_floating(self) -> bool:
        """True for tensors of real numbers, which can be quantized."""
        return self.torch_dtype is not None and self.torch_dtype.is_floating_point

    def record_format(self, number_format: NumberFormat) -> None:
        """Records the format that the tensor is quantized to; None resets it to float."""
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
    """Metadata that every pass can rely on.

    Attributes:
        mase_op: name of the operator: a row of the operator table, or the function's own name.
        mase_type: `module_related_func`, `module`, `builtin_func`, `patched_func`, `placeholder`,
            `get_attr` or `output`.
        args: the node's inputs: `data_in_0` ..., `weight`, `bias`; constants by their own names.
        results: `data_out_0` ...
    """

    mase_op: str = ""
    mase_type: str = ""
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    results: dict[str, TensorInfo] = dataclasses.field(default_factory=dict)


def get_operand(argument: str, module: QuantizedOperator) -> str:
    """Returns the operand of a quantized operator for an entry of `CommonMetadata.args`.

    >>> from torch import nn
    >>> from chop.nn.quantized import QuantLinear
    >>> get_operand("data_in_0", QuantLinear(2, 2))
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
    """Record with free-form entries that passes share."""


class MaseMetadata(Record):
    """`node.meta["mase"]`: the sections `common`, `software` and `hardware`, and their node.

    Args:
        node: node that the metadata belongs to; None if `attach` sets it later.
        model: ignored, as the node knows its model; present for compatibility with MASE.
        common: metadata that every pass can rely on; empty by default.

    Attributes:
        common: metadata that every pass can rely on.
        software: entries of software passes.
        hardware: entries of hardware passes.
    """

    __slots__ = ("_node",)  # not an entry: checkpoints, pickles and copies have only the sections

    common: CommonMetadata
    software: OpenRecord
    hardware: OpenRecord

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Creates the empty sections, also for copies and unpickled metadata."""
        metadata = super().__new__(cls)
        metadata._node = None
        return metadata

    def __init__(
        self,
        node: fx.Node | None = None,
        model: nn.Module | None = None,
        *,
        common: CommonMetadata | None = None,
    ) -> None:
        self._node = None if node is None else weakref.ref(node)
        self.common = common or CommonMetadata()
        self.software, self.hardware = OpenRecord(), OpenRecord()

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def copy_for(self, node: fx.Node, memo: dict[int, Any]) -> MaseMetadata:
        """Returns a copy for another node, when a captured module is copied."""
        twin = copy.deepcopy(self, memo)
        twin._node = weakref.ref(node)
        return twin

    @property
    def parameters(self) -> MaseMetadata:
        """The metadata itself; MASE stores the same three entries one level deeper."""
        return self

    @property
    def node(self) -> fx.Node:
        """The node.

        Raises:
            GraphError: if there is no node, or it no longer exists.
        """
        node = None if self._node is None else self._node()
        if node is None:
            raise GraphError(
                "this metadata belongs to no node: make it with MaseMetadata(node=node)."
            )
        return node

    @property
    def graph(self) -> fx.Graph:
        """The graph of the node."""
        return self.node.graph

    @property
    def model(self) -> nn.Module:
        """The model that runs the graph.

        Raises:
            GraphError: if the graph belongs to no model.
        """
        owner = self.graph.owning_module
        if owner is None:
            raise GraphError(f"node '{self.node.name}' belongs to a graph without a model.")
        return owner

    @property
    def module(self) -> nn.Module | None:
        """The module that a `call_module` node calls; None for other nodes."""
        node = self.node
        is_call = node.op == "call_module"
        return self.model.get_submodule(str(node.target)) if is_call else None


def attach(nodes: Iterable[fx.Node]) -> None:
    """Links the metadata of each node to the node; skips nodes without metadata."""
    for node in nodes:
        metadata = node.meta.get("mase")
        if isinstance(metadata, MaseMetadata):
            metadata._node = weakref.ref(node)


def node_metadata(node: fx.Node) -> MaseMetadata:
    """Returns `node.meta["mase"]`.

    Raises:
        GraphError: if `init_metadata_analysis_pass` has not run.
    """
    if not isinstance(node, fx.Node):
        raise GraphError(f"expected a node, got {describe(node)}; mg.node(NAME) finds it.")
    if "mase" not in node.meta:
        raise GraphError(
            f"node '{node.name}' has no metadata: run init_metadata_analysis_pass and "
            "add_common_metadata_analysis_pass first."
        )
    metadata: MaseMetadata = node.meta["mase"]
    return metadata


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Record of one pass applied to a graph.

    Attributes:
        name: the pass.
        config: its settings, as text.
    """

    name: str
    config: str
