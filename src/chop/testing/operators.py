"""Laws of operators: rows of the operator table."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from chop.formats import Integer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, Operator, of_module
from chop.nn.packed import pack, why_not_packable
from chop.nn.quantized import QuantizedOperator
from chop.testing.laws import obeys

WIDE, NARROW, COARSE = Integer(24, 16), Integer(8, 5), Integer(3, 0)
"""Formats that change next to nothing, a little, and much."""
FACTOR = 3.0


@dataclass(frozen=True)
class Example:
    """A row of the table, with a module of its class and the module's input."""

    row: Operator
    module: nn.Module
    x: Tensor

    @property
    def label(self) -> str:
        """Returns the name, for messages."""
        return self.row.name

    def quantized(self, spec: QuantSpec) -> nn.Module:
        """Returns a quantized copy of the module."""
        assert self.row.quantized is not None
        return self.row.quantized.from_float(copy.deepcopy(self.module), spec)

    def floating(self) -> Tensor:
        """Returns what the float module computes of the input."""
        with torch.no_grad():
            return torch.as_tensor(self.module(self.x))


def check_operator(row: Operator, example: tuple[nn.Module, Tensor]) -> None:
    """Checks a row of the operator table by all laws that apply to it.

    Args:
        row: row that `chop.ir.ops.register` has added.
        example: module of the row's class in evaluation mode, with parameters at random, and its
            input: numbers of which some are larger than 1. Both differ from their defaults, so
            that a rounding shows.
    Raises:
        AssertionError: names the law that is broken.

    Example:
        >>> from chop.ir.ops import OPS
        >>> check_operator(OPS["linear"], (torch.nn.Linear(4, 8).eval(), 2 * torch.randn(5, 4)))
    """
    module, x = example
    case = Example(row, module.eval(), x)
    laws: list[Callable[[Example], None]] = [
        it_is_registered_by_its_name,
        a_graph_keeps_it_as_one_node,
    ]
    if row.flops is not None:
        laws.append(flops_are_counted_as_torch_counts_products)
    laws += [law for trait, law in TRAITS.items() if getattr(row, trait)]
    if row.quantized is not None:
        laws += [
            a_quantized_twin_adopts_the_module,
            a_wide_format_changes_nothing,
            each_operand_is_rounded,
            gradients_reach_the_input_and_the_parameters,
        ]
        if "weight" in row.quantized.operands:
            laws.append(packed_computes_what_quantized_computes)
    for law in laws:
        obeys(law.__name__.replace("_", " "), law, case)


def it_is_registered_by_its_name(case: Example) -> None:
    """Passes find the row by name and by class."""
    assert OPS.get(case.row.name) is case.row, "the table has no such row; was it registered?"
    found = of_module(type(case.module)).name
    assert found == case.row.name, f"the example is a module of the operator '{found}'"


def a_graph_keeps_it_as_one_node(case: Example) -> None:
    """A capture calls the module, and a checkpoint of the graph computes the same."""
    mg = MaseGraph(nn.Sequential(copy.deepcopy(case.module)).eval(), dummy_in={"input": case.x})
    called = [node.target for node in mg.nodes if node.op == "call_module"]
    assert called == ["0"], f"the graph calls {called}"
    with TemporaryDirectory() as folder, torch.no_grad():
        mg.export(Path(folder) / "model")
        read = MaseGraph.from_checkpoint(Path(folder) / "model")
        assert torch.equal(read.model(case.x), case.floating()), "the checkpoint differs"


def flops_are_counted_as_torch_counts_products(case: Example) -> None:
    """Operations of a call are a whole number; those of a product are torch's count."""
    assert case.row.flops is not None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = case.module(case.x)
    weight = getattr(case.module, "weight", None)
    given = [case.x.shape] if weight is None else [case.x.shape, weight.shape]
    flops = case.row.flops(given, result.shape)
    assert flops == int(flops) >= 0, f"got {flops!r}"
    if case.row.is_product:
        counted = counter.get_total_flops()
        assert flops == counted, f"got {flops}, torch counts {counted}"


def a_factor_passes_through_a_homogeneous_operator(case: Example) -> None:
    """f(x / s) = f(x) / s."""
    with torch.no_grad():
        torch.testing.assert_close(case.module(case.x / FACTOR), case.floating() / FACTOR)


def rounding_commutes(case: Example) -> None:
    """f(round(x)) = round(f(x)), for monotone roundings that keep zero."""
    with torch.no_grad():
        rounded = case.module(NARROW.round(case.x))
    assert torch.equal(rounded, NARROW.round(case.floating())), "results differ"


def what_only_moves_keeps_every_element(case: Example) -> None:
    """The result has the elements of the input, once each."""
    x = torch.arange(case.x.numel(), dtype=case.x.dtype).view(case.x.shape)
    with torch.no_grad():
        y = case.module(x).flatten()
    assert torch.equal(y.sort().values, x.flatten()), "elements are missing, or are there twice"
    keeps_order = torch.equal(y, x.flatten())
    assert keeps_order == (case.row.layout == "view"), f"the row has the layout '{case.row.layout}'"


def it_is_affine_at_inference(case: Example) -> None:
    """f(x) - f(y) = f(x - y) - f(0)."""
    x, y = case.x, case.x.flip(0) / 2
    with torch.no_grad():
        f = case.module
        torch.testing.assert_close(f(x) - f(y), f(x - y) - f(torch.zeros_like(x)))


TRAITS: dict[str, Callable[[Example], None]] = {
    "is_homogeneous": a_factor_passes_through_a_homogeneous_operator,
    "commutes": rounding_commutes,
    "only_moves": what_only_moves_keeps_every_element,
    "is_affine": it_is_affine_at_inference,
}
"""Law by the trait of a row that states it."""


def a_quantized_twin_adopts_the_module(case: Example) -> None:
    """The twin has the parameters and the state dict of the module."""
    assert case.row.quantized is not None
    assert issubclass(case.row.quantized, case.row.modules), "it is no subclass of the module"
    module = copy.deepcopy(case.module)
    twin = case.row.quantized.from_float(module, QuantSpec.uniform(NARROW))
    assert twin.state_dict().keys() == module.state_dict().keys(), "their state dicts differ"
    shared = zip(twin.parameters(), module.parameters(), strict=True)
    assert all(a is b for a, b in shared), "the twin has parameters of its own"


def a_wide_format_changes_nothing(case: Example) -> None:
    """The twin computes what the module computes where a format rounds next to nothing."""
    with torch.no_grad():
        found = case.quantized(QuantSpec.uniform(WIDE))(case.x)
    torch.testing.assert_close(found, case.floating(), atol=1e-3, rtol=1e-3)


def each_operand_is_rounded(case: Example) -> None:
    """A coarse format of one operand changes the result."""
    assert case.row.quantized is not None
    for name in dict.fromkeys((*case.row.quantized.operands, "data_out")):
        parameter = None if name.startswith("data_") else getattr(case.module, name, None)
        if parameter is None and not name.startswith("data_"):
            continue
        is_same = parameter is not None and torch.equal(COARSE.round(parameter), parameter)
        assert not is_same, f"'{name}' of the example has whole numbers: draw it at random"
        with torch.no_grad():
            found = case.quantized(QuantSpec().with_quantizers(**{name: COARSE}))(case.x)
        assert not torch.equal(found, case.floating()), f"'{name}' is not rounded"


def gradients_reach_the_input_and_the_parameters(case: Example) -> None:
    """Training in a format gives finite gradients."""
    twin, x = case.quantized(QuantSpec.uniform(NARROW)), case.x.clone().requires_grad_()
    twin(x).sum().backward()
    trained = {"the input": x, **{k: p for k, p in twin.named_parameters() if p.requires_grad}}
    for name, tensor in trained.items():
        assert tensor.grad is not None, f"{name} has no gradient"
        assert tensor.grad.isfinite().all(), f"the gradient of {name} is not finite"


def packed_computes_what_quantized_computes(case: Example) -> None:
    """Stored codes stand for the rounded values, bit for bit."""
    layer = case.quantized(QuantSpec.uniform(NARROW))
    assert isinstance(layer, QuantizedOperator)
    reason = why_not_packable(layer)
    assert not reason, f"it cannot be packed: {reason}"
    with torch.no_grad():
        assert torch.equal(pack(layer)(case.x), layer(case.x)), "results differ"
