"""What the activation pruner keeps, and who takes it."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chop.errors import ConfigError
from chop.nn.sparsity import PruneActivation
from tests.subcases import subcases

METHODS = ["l1-norm", "random"]


@subcases("sparsity", [0.0, 0.1, 0.5, 0.99])
@subcases("shape", [(12, 7), (2, 3, 4, 5), (31,), (1, 1), (0, 3), ()])
@subcases("method", METHODS)
def test_the_share_is_exact_and_the_rest_unchanged(method, shape, sparsity):
    x = torch.randn(shape) + 3
    y = PruneActivation(sparsity, method)(x)
    zero = y == 0
    assert y.shape == x.shape and int(zero.sum()) == int(sparsity * x.numel() + 0.5)
    assert torch.equal(y[~zero], x[~zero])


def test_the_largest_magnitudes_stay():
    x = torch.tensor([[-5.0, 1.0, 0.5], [2.0, -0.1, 4.0]])
    expected = torch.tensor([[-5.0, 0.0, 0.0], [2.0, 0.0, 4.0]])
    assert torch.equal(PruneActivation(0.5)(x), expected)
    same = torch.full((10,), 2.0)
    assert PruneActivation(0.3)(same).count_nonzero() == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_threshold_takes_the_place_of_the_share(dtype):
    x = torch.tensor([[-5.0, 1.0, float("nan")], [2.0, -0.1, 0.0]], dtype=dtype)
    x.requires_grad_()
    y = PruneActivation(0.1, threshold=2.0)(x)
    assert y.dtype == dtype and y.nan_to_num(7).tolist() == [[-5.0, 0.0, 7.0], [0.0, 0.0, 0.0]]
    y[0, 0].backward()
    assert x.grad.count_nonzero() == 1 and torch.equal(
        PruneActivation(0.9, threshold=-1)(x[1]), x[1]
    )


def test_its_text_has_the_settings():
    assert str(PruneActivation(0.25)) == "PruneActivation(sparsity=0.25, method=l1-norm)"
    assert "threshold=1.5" in str(PruneActivation(0.25, threshold=1.5))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_flow_through_what_is_kept(method):
    x = torch.randn(6, 5, requires_grad=True)
    y = PruneActivation(0.4, method)(x)
    (y * 3).sum().backward()
    assert torch.equal(x.grad, torch.where(y != 0, 3.0, 0.0))


def test_random_depends_on_the_seed_and_is_spread_evenly():
    x = torch.ones(100, 100)
    one, same, other = (PruneActivation(0.5, "random", seed)(x) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    # of two independent halves a quarter agrees on each of the four combinations
    assert (one * other).mean().item() == pytest.approx(0.25, abs=0.02)
    assert one.mean(0).std() < 0.07 and one.mean(1).std() < 0.07
    huge = PruneActivation(0.5, "random", seed=-7)(x)
    assert huge.mean() == 0.5 and not torch.equal(huge, one)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long
def test_torch_compiles_and_exports_it(method):
    layer = nn.Sequential(PruneActivation(0.3, method), nn.Linear(7, 2))
    x, larger = torch.randn(4, 7), torch.randn(9, 7)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(compiled(larger), layer(larger))
    rows = torch.export.Dim("rows")
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(program.module()(larger), layer(larger))


@pytest.mark.parametrize("settings", [{}, {"method": "random"}, {"threshold": 0.5}])
def test_forward_mode_and_vmap_see_what_is_kept(settings):
    pruner, x = PruneActivation(0.5, **settings), torch.randn(6, 5)
    y, tangent = torch.func.jvp(pruner, (x,), (torch.full((6, 5), 2.0),))
    assert torch.equal(y, pruner(x)) and torch.equal(tangent, torch.where(y != 0, 2.0, 0.0))
    rows = torch.func.vmap(pruner)(x)
    assert torch.equal(rows, torch.stack([pruner(row) for row in x]))


class Called(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"method": "random"}, {"threshold": 0.5}])
def test_nothing_is_sorted_in_a_forward(settings):
    pruner, x = PruneActivation(0.5, **settings), torch.randn(30, 40)
    pruner(x)  # what is random is drawn once
    with Called() as called:
        pruner(x)
    assert called.names and not any("sort" in name for name in called.names)


def test_copies_of_another_size_or_seed_draw_anew():
    pruner = PruneActivation(0.5, "random")
    small, large = pruner(torch.ones(10)), pruner(torch.ones(30))
    assert small.sum() == 5 and large.sum() == 15
    assert torch.equal(pruner(torch.ones(10)), small)
    pruner.seed = 3
    assert not torch.equal(pruner(torch.ones(30)), large)


def test_not_a_number_is_kept():
    x = torch.tensor([float("nan"), 1.0, -2.0, float("inf")])
    y = PruneActivation(0.5)(x)
    assert y.isnan().tolist() == [True, False, False, False] and y[3] == float("inf")
    assert y[1:3].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1.0,), "expected 0 to below 1, got 1.0"), ((0.5, "l1norm"), "did you mean 'l1-norm'")],
)
def test_wrong_arguments_are_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PruneActivation(*arguments)
