"""What is written to the decoded parameters of packed layers."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from chop.base.notices import AdjustedWarning, forget_notices
from chop.errors import ConfigError
from chop.nn import quantized as q
from chop.nn.packed import DecodedTensor, pack
from tests.subcases import subcases

FORMATS = ["mxint", "group_integer", "nvfp4", "ternary"]
# Small parameters are decoded once and kept, others each time.
SHAPES = {"small": (8, 64), "large": (64, 320)}


def layer(name="mxint", shape=SHAPES["small"], operator=q.QuantLinear, **options):
    torch.manual_seed(0)
    config = {"weight": {"name": name}, "bias": {"name": "mxint"}}
    return pack(operator(*reversed(shape), config=config, **options)).eval()


def under(mode, write):
    def wrapped(x):
        with mode():
            write(x)

    return wrapped


WRITES = {
    "mul_": lambda x: x.mul_(1.37),
    "+=": lambda x: x.__iadd__(0.03),
    "data +=": lambda x: x.data.__iadd__(torch.ones(x.shape, requires_grad=True)),
    "+= of a gradient": lambda x: x.__iadd__(torch.ones(x.shape, requires_grad=True)),
    "[:, 0] =": lambda x: x.__setitem__((slice(None), 0), 0.4),
    "row": lambda x: x.data[1].zero_(),
    "transposed": lambda x: x.T.detach().view(x.T.shape)[3].fill_(0.2),
    "split": lambda x: x.split(4)[1].neg_(),
    "for row in": lambda x: [row.clamp_(0) for row in x],
    "out=": lambda x: torch.add(x, 0.1, out=x),
    "foreach": lambda x: torch._foreach_mul_([x], 0.7),
    "copy_": lambda x: x.copy_(torch.full(x.shape, 0.3, dtype=torch.bfloat16)),
    "inplace=True": lambda x: F.relu(x, inplace=True),
    "init": lambda x: nn.init.kaiming_uniform_(x),
    "init in steps": lambda x: nn.init.trunc_normal_(x, std=0.02),
    "set_": lambda x: x.set_(torch.full(x.shape, 0.25)),
    "set_ of a storage": lambda x: x.set_(
        torch.full(x.shape, 0.25).untyped_storage(), 0, x.shape, x.stride()
    ),
    "torch.ops": lambda x: torch.ops.aten.set_.source_Tensor(x, torch.full(x.shape, 0.25)),
    "apply_": lambda x: x.apply_(lambda value: 2 * value),
    "map_": lambda x: x.map_(torch.full(x.shape, 0.3), lambda _, value: value),
    "copy.copy": lambda x: copy.copy(x).mul_(1.37),
    "vector_to_parameters": lambda x: nn.utils.vector_to_parameters(
        torch.linspace(-1, 1, x.numel()), [x]
    ),
    "inference": under(torch.inference_mode, lambda x: x.mul_(1.37)),
}


@subcases("shape", SHAPES)
@subcases("name", WRITES)
@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_writes_go_to_the_codes(name, shape):
    packed = layer(shape=SHAPES[shape])
    expected = packed.weight.clone()
    for x in (packed.weight, expected):
        torch.manual_seed(1)
        with (
            torch.no_grad() if "gradient" not in name and "+=" not in name else torch.enable_grad()
        ):
            WRITES[name](x)
    stored = packed.spec.weight.round(expected.detach())
    assert torch.equal(packed.weight, stored)
    x = torch.randn(3, packed.in_features)
    torch.testing.assert_close(packed(x), F.linear(x, stored, packed.bias))


def sharing(packed):
    """A layer with the same codes, as tied ones have them."""
    twin = copy.copy(packed)
    twin.__dict__["_buffers"] = dict(packed._buffers)
    return twin


ASSIGNED = {
    "data": lambda layer, x: setattr(layer.weight, "data", x),
    "tensor": lambda layer, x: setattr(layer, "weight", x),
    "parameter": lambda layer, x: setattr(layer, "weight", nn.Parameter(x)),
}


@subcases("name", FORMATS)
@subcases("how", ASSIGNED)
@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_assignments_go_to_the_codes(name, how):
    packed, value = layer(name), torch.randn(8, 64)
    tied, old = sharing(packed), packed.weight.clone()
    ASSIGNED[how](packed, value)
    assert torch.equal(packed.weight, packed.spec.weight.round(value))
    # Other values of a parameter are seen wherever it is, another parameter is not.
    assert torch.equal(tied.weight, packed.weight if how == "data" else old)
    assert not list(packed.parameters())
    packed.bias = torch.full((8,), 0.5)
    packed.bias.data += 0.25
    assert torch.equal(packed.bias, torch.full((8,), 0.75))


TIES = {
    "weight": lambda packed: packed.weight,
    "data": lambda packed: packed.weight.data,
    "parameter": lambda packed: nn.Parameter(packed.weight, requires_grad=False),
    "view": lambda packed: packed.weight.view(8, 64),
}


@subcases("how", TIES)
@subcases("name", FORMATS)
@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_the_parameter_of_another_layer_is_shared(name, how):
    table, head = layer(name, (64, 8), q.QuantEmbedding), layer(name)
    former, old, own = sharing(head), head.weight.clone(), head.weight
    head.weight = TIES[how](table)
    for written in (table, head):
        written.weight.mul_(1.37)
        written.weight[1] = 0.3
        assert torch.equal(head.weight, table.weight)
        x = torch.randn(3, 64)
        torch.testing.assert_close(head(x), F.linear(x, table.weight, head.bias))
    assert torch.equal(former.weight, old)
    with pytest.raises(ConfigError, match="assigned or moved after this tensor was read"):
        own.mul_(2)
    head.weight = own  # as what replaces a parameter for one call does
    assert torch.equal(head.weight, old)
    head.weight.mul_(2)
    assert torch.equal(former.weight, head.weight) and not torch.equal(head.weight, table.weight)


@pytest.mark.parametrize("other", ["format", "pruned", "part"])
def test_a_parameter_that_cannot_be_shared_is_copied_and_said(other, recwarn):
    forget_notices()
    head, source = layer("mxint"), layer("nvfp4" if other == "format" else "mxint")
    head.packed_mask = other == "pruned"
    source.weight.copy_(layer("nvfp4").weight)
    head.weight = source.weight if other != "part" else source.weight.flip(0)
    before = head.weight.clone()
    source.weight.zero_()
    assert torch.equal(head.weight, before) and before.any()
    said = [str(w.message) for w in recwarn.list if "cannot be tied" in str(w.message)]
    assert len(said) == (other != "part")


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_a_layer_assigned_to_itself_and_rows_as_before_keep_their_codes():
    packed = layer("group_integer")
    before = packed.encoded("weight").take_rows(torch.tensor([0, 2, 3, 4, 5, 6, 7]))
    packed.weight = packed.weight
    packed.weight[1] = torch.linspace(-1, 1, 64)
    after = packed.encoded("weight").take_rows(torch.tensor([0, 2, 3, 4, 5, 6, 7]))
    assert torch.equal(after.codes, before.codes) and torch.equal(after.scales, before.scales)


def test_what_rounding_costs_is_said_once_for_each_format(recwarn):
    forget_notices()
    packed = layer("mxint")
    packed.weight.mul_(2)
    assert not recwarn.list
    wanted = packed.weight * 1.37
    change = wanted - packed.weight
    packed.weight.mul_(1.37)
    layer("mxint").weight.mul_(1.37)
    layer("group_integer").weight.mul_(1.37)
    first, second = [str(w.message) for w in recwarn.list if w.category is AdjustedWarning]
    lost = (packed.weight - wanted).norm()
    assert f"{lost / wanted.norm():.2g} of the values" in first and "mxint(width=8)" in first
    assert f"{lost / change.norm():.2g} of the change" in first and "group_integer" in second


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_pruned_layers_stay_pruned():
    float_layer = q.QuantLinear(64, 8, config={"weight": {"name": "mxint"}})
    float_layer.register_buffer("weight_mask", torch.rand(8, 64) > 0.5)
    packed = pack(float_layer)
    zeros = packed.weight == 0
    packed.weight.add_(1)
    assert (packed.weight[zeros] == 0).all() and (packed.weight[~zeros] != 0).all()


BAD = {
    "not finite": (lambda packed: packed.weight.mul_(float("nan")), "non-finite values written"),
    "shape": (
        lambda packed: setattr(packed.weight, "data", torch.ones(2, 2)),
        r"of shape \[8, 64\], got values of shape \[2, 2\]; unpack",
    ),
    "gradient": (lambda packed: packed.weight.requires_grad_(), "weight cannot have a gradient"),
    "flag": (lambda packed: setattr(packed.weight, "requires_grad", True), "an adapter around"),
    "parameter": (lambda packed: nn.Parameter(packed.weight), "a copy of its values"),
    "swap": (
        lambda packed: torch.utils.swap_tensors(packed.weight, torch.ones(8, 64)),
        "cannot be swapped for another tensor; assign it",
    ),
    "set_": (lambda packed: packed.weight.set_(torch.ones(64)), r"values of shape \[64\]; unpack"),
    "dlpack": (lambda packed: torch.from_dlpack(packed.weight), "pass a copy"),
    "a view's dlpack": (lambda packed: torch.from_dlpack(packed.weight.data[0]), "through DLPack"),
    "numpy's dlpack": (lambda packed: np.from_dlpack(packed.weight), "pass a copy"),
    "pruned by torch": (
        lambda packed: prune.l1_unstructured(packed, "weight", 0.5),
        r"PackedLinear: 'weight_orig' cannot be .* layer.unpack\(\), or change it before packing",
    ),
    "rows pruned": (
        lambda packed: prune.random_structured(packed, "weight", 0.5, 0),
        "before packing .*prune_transform_pass",
    ),
    "pruned by a mask": (
        lambda packed: prune.custom_from_mask(packed, "bias", torch.ones(8)),
        "'bias_orig' cannot be a parameter",
    ),
    "normed by a hook": (weight_norm, r"PackedLinear: 'weight' cannot be a parameter"),
    "spectral norm by a hook": (spectral_norm, r"'weight' cannot .* layer.unpack\(\)"),
    "a normed bias": (lambda packed: weight_norm(packed, "bias"), "'bias' cannot be a parameter"),
    "no tensor": (
        lambda packed: setattr(packed, "weight", None),
        "expected a tensor, got a NoneType",
    ),
}


@subcases("case", BAD)
def test_what_codes_cannot_be_is_refused(case):
    made, (write, message) = layer(), BAD[case]
    for packed in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        before = packed.weight_codes.clone()
        with warnings.catch_warnings(), pytest.raises(ConfigError, match=message):
            warnings.simplefilter("ignore", FutureWarning)  # old hooks are deprecated
            write(packed)
        assert torch.equal(packed.weight_codes, before)


def test_reads_are_plain():
    weight = layer().weight
    assert isinstance(weight, DecodedTensor) and type(weight + 1) is type(weight.clone())
    assert {type(weight + 1), type(copy.deepcopy(weight))} == {torch.Tensor}
    assert type(pickle.loads(pickle.dumps(weight))) is torch.Tensor
    assert type(weight[0]) is DecodedTensor and type(weight.float()) is DecodedTensor
    weight.requires_grad = False
    assert not weight.requires_grad_(False).requires_grad and weight.shape == (8, 64)
    with pytest.raises(ValueError, match="read-only"):
        weight.numpy()[0] = 1
    compiled = torch.compile(lambda m: m.weight * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(layer()), weight * 2)


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_a_table_takes_other_rows():
    table = layer("mxint", (64, 10), q.QuantEmbedding)
    before = table.weight.clone()
    for count in (14, 5):
        rows = torch.randn(count, 64)
        kept = min(count, len(before))
        rows[:kept] = before[:kept]
        table.weight.data = rows
        table.num_embeddings = count
        assert torch.equal(table.weight[:kept], before[:kept])
        assert torch.equal(table(torch.tensor([count - 1])), table.weight[-1:])
    with pytest.raises(ConfigError, match="from 5 to 6"):
        table.num_embeddings = 6
