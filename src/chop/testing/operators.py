"""Laws of operators in the operator table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from chop.formats import Integer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, Operator, get_class_row
from chop.nn.packed import pack, why_not_packable
from chop.nn.quantized import QuantizedOperator
from chop.testing.laws import obeys

WIDE, NARROW, COARSE = Integer(24, 16), Integer(8, 5), Integer(3, 0)
"""Formats with negligible, small, and large rounding."""
FACTOR = 3.0


@dataclass(frozen=True)
class Example:
    """Operator with an example module and its inputs."""

    row: Operator
    module: nn.Module
    inputs: tuple[Tensor, ...]

    @property
    def label(self) -> str:
        """Name of the operator, for messages."""
        return self.row.name

    def quantized(self, spec: QuantSpec) -> nn.Module:
        """Returns a quantized copy of the module."""
        assert self.row.quantized is not None
        return self.row.quantized.from_float(copy.deepcopy(self.module), spec)

    def floating(self) -> Tensor:
        """Returns the output of the float module."""
        return self.computed(self.inputs)

    def computed(self, inputs: Iterable[Tensor]) -> Tensor:
        """Returns the output of the float module for other inputs."""
        with torch.no_grad():
            return torch.as_tensor(self.module(*inputs))

    def changed(self, change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Returns the inputs with `change` applied to the floating-point ones."""
        return [change(x) if x.is_floating_point() else x for x in self.inputs]


class _Around(nn.Module):
    """Model of a single operator with one to three inputs."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, a: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Any:
        return self.operator(*[x for x in (a, b, c) if x is not None])


def check_operator(row: Operator, example: tuple[nn.Module, Tensor | tuple[Tensor, ...]]) -> None:
    """Checks a row of the operator table by all applicable laws.

    Args:
        row: row added by `chop.ir.ops.register`.
        example: module of the row's class in evaluation mode with random parameters, and its input
            with some numbers above 1. Both differ from their defaults so that rounding is visible.
            An operator with two or three inputs takes a tuple.
    Raises:
        AssertionError: if a law is broken; the message names it.

    Example:
        >>> from chop.ir.ops import OPS
        >>> check_operator(OPS["linear"], (torch.nn.Linear(4, 8).eval(), 2 * torch.randn(5, 4)))
    """
    assert isinstance(row, Operator), f"expected a row, such as OPS['linear'], got {row!r:.60}"
    module, x = example
    case = Example(row, module.eval(), x if isinstance(x, tuple) else (x,))
    laws: list[Callable[[Example], None]] = [
        _it_is_registered_by_its_name,
        _a_graph_keeps_it_as_one_node,
    ]
    if row.flops is not None:
        laws.append(_flops_are_counted_as_torch_counts_products)
    laws += [law for trait, law in TRAITS.items() if getattr(row, trait)]
    if row.quantized is not None:
        laws += [
            _a_quantized_twin_adopts_the_module,
            _a_wide_format_changes_nothing,
            _each_operand_is_rounded,
            _each_input_is_rounded,
            _gradients_reach_the_input_and_the_parameters,
        ]
        if "weight" in row.quantized.operands:
            laws.append(_packed_computes_what_quantized_computes)
    for law in laws:
        obeys(law, case)


def _it_is_registered_by_its_name(case: Example) -> None:
    """Passes find the operator by name and by class."""
    assert OPS.get(case.row.name) is case.row, "the table has no such row. Was it registered?"
    operator = get_class_row(type(case.module)).name
    assert operator == case.row.name, f"the example is a module of the operator '{operator}'"


def _a_graph_keeps_it_as_one_node(case: Example) -> None:
    """A capture calls the module, and a checkpoint of the graph gives the same output."""
    named = dict(zip("abc", case.inputs, strict=False))
    mg = MaseGraph(_Around(copy.deepcopy(case.module)).eval(), dummy_in=named)
    called = [node.target for node in mg.nodes if node.op == "call_module"]
    assert called == ["operator"], f"the graph calls {called}"
    with TemporaryDirectory() as folder, torch.no_grad():
        mg.export(Path(folder) / "model")
        read = MaseGraph.from_checkpoint(Path(folder) / "model")
        assert torch.equal(read.model(**named), case.floating()), "the checkpoint differs"


def _flops_are_counted_as_torch_counts_products(case: Example) -> None:
    """The operation count is a whole number; for products it equals torch's count."""
    assert case.row.flops is not None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = case.module(*case.inputs)
    weight = getattr(case.module, "weight", None)
    given = [x.shape for x in case.inputs] + ([] if weight is None else [weight.shape])
    flops = case.row.flops(given, result.shape)
    assert flops == int(flops) >= 0, f"got {flops!r}"
    if case.row.is_product:
        counted = counter.get_total_flops()
        assert flops == counted, f"got {flops}, torch counts {counted}"


def _a_factor_passes_through_a_homogeneous_operator(case: Example) -> None:
    """f(x / s) = f(x) / s."""
    result = case.computed(case.changed(lambda x: x / FACTOR))
    torch.testing.assert_close(result, case.floating() / FACTOR)


def _rounding_commutes(case: Example) -> None:
    """f(round(x)) = round(f(x)), for monotone roundings that keep zero."""
    rounded = case.computed(case.changed(NARROW.round))
    assert torch.equal(rounded, NARROW.round(case.floating())), "results differ"


def _what_only_moves_keeps_every_element(case: Example) -> None:
    """The result has the elements of the input, each once."""
    sizes = [x.numel() for x in case.inputs]
    whole = torch.arange(sum(sizes), dtype=case.inputs[0].dtype)
    parts = zip(whole.split(sizes), case.inputs, strict=True)
    y = case.computed(part.view(x.shape) for part, x in parts).flatten()
    assert torch.equal(y.sort().values, whole), "elements are missing or duplicated"
    keeps_order = torch.equal(y, whole)
    assert keeps_order == (case.row.layout == "view"), f"the row has the layout '{case.row.layout}'"


def _it_is_affine_at_inference(case: Example) -> None:
    """f(x) - f(y) = f(x - y) - f(0)."""
    other = case.changed(lambda x: x.flip(0) / 2)
    apart = case.computed(case.changed(lambda x: x - x.flip(0) / 2))
    at_zero = case.computed(case.changed(torch.zeros_like))
    torch.testing.assert_close(case.floating() - case.computed(other), apart - at_zero)


TRAITS: dict[str, Callable[[Example], None]] = {
    "is_homogeneous": _a_factor_passes_through_a_homogeneous_operator,
    "commutes": _rounding_commutes,
    "only_moves": _what_only_moves_keeps_every_element,
    "is_affine": _it_is_affine_at_inference,
}
"""Trait of a row -> its law."""


def _a_quantized_twin_adopts_the_module(case: Example) -> None:
    """The quantized module has the parameters and the state dict of the module."""
    assert case.row.quantized is not None
    assert issubclass(case.row.quantized, case.row.modules), "it is not a subclass of the module"
    module = copy.deepcopy(case.module)
    twin = case.row.quantized.from_float(module, QuantSpec.uniform(NARROW))
    assert twin.state_dict().keys() == module.state_dict().keys(), "their state dicts differ"
    shared = zip(twin.parameters(), module.parameters(), strict=True)
    assert all(a is b for a, b in shared), "the twin has parameters of its own"


def _a_wide_format_changes_nothing(case: Example) -> None:
    """In a format with negligible rounding, the quantized module gives the same output."""
    with torch.no_grad():
        result = case.quantized(QuantSpec.uniform(WIDE))(*case.inputs)
    torch.testing.assert_close(result, case.floating(), atol=1e-3, rtol=1e-3)


def _each_operand_is_rounded(case: Example) -> None:
    """A coarse format for one operand changes the result."""
    assert case.row.quantized is not None
    for name in dict.fromkeys((*case.row.quantized.operands, "data_out")):
        parameter = None if name.startswith("data_") else getattr(case.module, name, None)
        if parameter is None and not name.startswith("data_"):
            continue
        is_same = parameter is not None and torch.equal(COARSE.round(parameter), parameter)
        assert not is_same, f"'{name}' of the example has whole numbers: draw it at random"
        with torch.no_grad():
            result = case.quantized(QuantSpec().with_quantizers(**{name: COARSE}))(*case.inputs)
        assert not torch.equal(result, case.floating()), f"'{name}' is not rounded"


def _each_input_is_rounded(case: Example) -> None:
    """An already rounded input gives the same result as the unrounded input."""
    twin = case.quantized(QuantSpec().with_quantizers(data_in=COARSE))
    with torch.no_grad():
        expected = twin(*case.inputs)
        for k, x in enumerate(case.inputs):
            if x.is_floating_point():
                given = (*case.inputs[:k], COARSE.round(x), *case.inputs[k + 1 :])
                assert torch.equal(twin(*given), expected), f"input {k} is not rounded"


def _gradients_reach_the_input_and_the_parameters(case: Example) -> None:
    """Training in a format gives finite gradients."""
    twin = case.quantized(QuantSpec.uniform(NARROW))
    inputs = case.changed(lambda x: x.clone().requires_grad_())
    twin(*inputs).sum().backward()
    trained = {f"the input {k}": x for k, x in enumerate(inputs) if x.is_floating_point()}
    trained |= {k: p for k, p in twin.named_parameters() if p.requires_grad}
    for name, tensor in trained.items():
        assert tensor.grad is not None, f"{name} has no gradient"
        assert tensor.grad.isfinite().all(), f"the gradient of {name} is not finite"


def _packed_computes_what_quantized_computes(case: Example) -> None:
    """Packed codes represent the rounded values, bit by bit."""
    layer = case.quantized(QuantSpec.uniform(NARROW))
    assert isinstance(layer, QuantizedOperator)
    reason = why_not_packable(layer)
    assert not reason, f"it cannot be packed: {reason}"
    with torch.no_grad():
        assert torch.equal(pack(layer)(*case.inputs), layer(*case.inputs)), "results differ"
