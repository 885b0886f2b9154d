"""What rows of the operator table say is true of the operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chop.ir.ops import OPS, Kind, Operator, get_class_row, get_function_row, table
from chop.nn import quantized
from chop.testing import operators

WEIGHTED = [
    (nn.Linear(6, 4), (3, 5, 6)),
    (nn.Conv1d(6, 4, 3), (3, 6, 9)),
    (nn.Conv2d(6, 4, (3, 2), stride=2), (3, 6, 9, 8)),
    (nn.Conv3d(6, 4, 2), (3, 6, 4, 4, 4)),
    (nn.ConvTranspose1d(6, 4, 3), (3, 6, 9)),
    (nn.ConvTranspose2d(6, 4, 3, stride=2), (3, 6, 5, 5)),
]
PRODUCTS = [
    (torch.matmul, [(2, 3, 4), (2, 4, 5)]),
    (torch.matmul, [(2, 3, 4), (4, 5)]),
    (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    (F.scaled_dot_product_attention, [(2, 3, 7, 4), (2, 3, 5, 4), (2, 3, 5, 4)]),
]


def modules_with(trait):
    rows = [row for row in OPS.values() if getattr(row, trait)]
    return [cls for row in rows for cls in row.modules]


def counted(call, *tensors):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = call(*tensors)
    return counter.get_total_flops(), result


def label(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("function", "shapes"), PRODUCTS, ids=label)
def test_flops_of_products_are_those_that_torch_counts(function, shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    # The kernel for CPUs is not in torch's table.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        flops, result = counted(function, *tensors)
    assert get_function_row(function).flops(shapes, result.shape) == flops > 0


@pytest.mark.parametrize(("layer", "shape"), WEIGHTED, ids=str)
def test_axes_of_weights(layer, shape):
    row = get_class_row(type(layer))
    outputs, inputs = (getattr(layer, name) for name in row.weight.sizes)
    assert layer.weight.shape[row.weight.outputs] == outputs == 4
    assert layer.weight.shape[row.weight.inputs] == inputs == 6
    x = torch.randn(shape)
    assert x.shape[x.dim() - 1 - row.spatial] == inputs
    with torch.no_grad():
        before = layer(x)
        layer.weight.select(row.weight.outputs, 1).zero_()
        changed = (layer(x) != before).movedim(before.dim() - 1 - row.spatial, 0).flatten(1).any(1)
    assert changed.tolist() == [False, True, False, False]


def test_the_rows_of_a_table_are_looked_up():
    table, row = nn.Embedding(10, 4), OPS["embedding"]
    assert row.weight.is_table and not row.is_product
    assert [getattr(table, name) for name in row.weight.sizes] == [10, 4]


def example_of(module, x):
    return operators.Example(get_class_row(type(module)), module.eval(), (x,))


@pytest.mark.parametrize("cls", modules_with("is_homogeneous"))
def test_a_factor_passes_through_homogeneous_operators(cls):
    x = torch.randn(4, 6, 5, 5)
    law = operators.TRAITS["is_homogeneous"]
    law(example_of(cls(), x[..., 0] if cls is nn.Dropout1d else x))
    with pytest.raises(AssertionError):
        law(example_of(nn.GELU(), x))


@pytest.mark.parametrize("cls", modules_with("commutes"))
def test_rounding_commutes(cls):
    x = 3 * torch.randn(2, 3, 6, 6)
    operators.TRAITS["commutes"](example_of(cls(2) if cls is nn.MaxPool2d else cls(), x))
    with pytest.raises(AssertionError):
        operators.TRAITS["commutes"](example_of(nn.AvgPool2d(2), x))


@pytest.mark.parametrize("name", [name for name, row in OPS.items() if row.only_moves])
def test_what_only_moves_keeps_every_element(name):
    x = torch.arange(24).view(1, 2, 3, 4)
    arguments = {
        "view": (6, 4),
        "reshape": (4, 6),
        "permute": (0, 3, 2, 1),
        "transpose": (1, 2),
        "unsqueeze": (1,),
    }
    if "shuffle" in name:
        y = getattr(F, name)(x.view((1, 3, 4, 2) if name == "pixel_unshuffle" else (1, 4, 2, 3)), 2)
    else:
        y = x if name == "identity" else getattr(x, name)(*arguments.get(name, ()))
    assert sorted(y.flatten().tolist()) == list(range(24))
    keeps_order = y.flatten().tolist() == list(range(24))
    assert keeps_order == (OPS[name].layout == "view")


@pytest.mark.parametrize("cls", modules_with("is_affine"))
def test_norms_by_channel_are_affine_at_inference(cls):
    norm, rank = cls(3), {nn.BatchNorm1d: 3, nn.BatchNorm3d: 5}.get(cls, 4)
    nn.init.normal_(norm.weight)
    operators.TRAITS["is_affine"](example_of(norm, torch.randn(4, 3, *[2] * (rank - 2))))


@pytest.mark.parametrize("name", [n for n, r in OPS.items() if r.features is not None])
def test_weights_scale_features(name):
    row = OPS[name]
    layer = row.modules[0](*([4, 4] if name == "linear" else [4])).eval()
    x = torch.randn(5, 4)
    with torch.no_grad():
        before = layer(x)
        layer.weight *= torch.tensor([1.0, 2, 1, 1]).view(-1, *[1] * (layer.weight.dim() - 1))
        if getattr(layer, "bias", None) is not None:
            layer.bias[1] *= 2
    factor = torch.ones(4)
    factor[1] = 2
    torch.testing.assert_close(layer(x), before * factor)
    assert row.features % x.dim() == 1


@pytest.mark.parametrize("name", ["celu", "hardsigmoid"])
def test_functions_that_mase_has_apart_from_their_modules(name):
    cls = {"celu": nn.CELU, "hardsigmoid": nn.Hardsigmoid}[name]
    module, function = get_class_row(cls), get_function_row(getattr(F, name))
    assert (module.name, module.mase_type) == (name, "module")
    assert (function.name, function.mase_type) == (name, "builtin_func")
    assert module.follow is function.follow is OPS[name].follow is not None


def test_each_quantized_operator_has_its_row():
    named = {row.quantized for row in OPS.values()} | {row.twin for row in OPS.values()}
    classes = {cls for cls in vars(quantized).values() if isinstance(cls, type)}
    operators = {cls for cls in classes if issubclass(cls, quantized.QuantizedOperator)}
    general = {quantized.QuantizedOperator, quantized.QuantCall, quantized.QuantInPlaceCall}
    general |= {quantized.QuantScores, quantized.QuantContext}
    assert operators - named == general
    for row in OPS.values():
        if row.quantized is not None:
            assert issubclass(row.quantized, row.modules[0])


def test_a_contraction_is_a_product():
    assert OPS["einsum"].kind is Kind.PRODUCT is OPS["matmul"].kind


def test_rows_do_not_contradict_what_they_have_in_common():
    row = Operator("another", "module", kind=Kind.NORM)
    with pytest.raises(AssertionError):
        table._all({"kind": Kind.POOLING}, row)
    assert table._all({"spatial": 1}, row)[0].spatial == 1
