"""Cached weights: used while nothing changed, never when something did."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

from chop.formats import Binary, MXInt, QuantSpec, ScaleInteger, from_key
from chop.nn import cached_weights, weight_cache
from chop.nn import quantized as q
from chop.nn.sparsity.mask import attach_mask

SPEC = QuantSpec(weight=MXInt(), bias=MXInt())


def layer(spec=SPEC):
    torch.manual_seed(0)
    return q.QuantLinear.from_float(nn.Linear(32, 8), spec).eval()


X = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def rounded(monkeypatch):
    """The shapes of what is rounded."""
    shapes = []
    whole = q.QuantizedOperator._round

    def count(self, operand, x, mask):
        shapes.append((operand, tuple(x.shape)))
        return whole(self, operand, x, mask)

    monkeypatch.setattr(q.QuantizedOperator, "_round", count)
    return shapes


def weights(rounded):
    return sum(operand == "weight" for operand, _ in rounded)


def test_each_parameter_is_rounded_once_and_outputs_are_equal(rounded):
    module = layer()
    expected = module(X)
    rounded.clear()
    with cached_weights(module), torch.no_grad():
        outputs = [module(X) for _ in range(3)]
    operands = [operand for operand, _ in rounded]
    assert operands.count("weight") == operands.count("bias") == 1
    assert all(torch.equal(y, expected) for y in outputs)
    assert module not in weight_cache._shelves
    with torch.no_grad():
        module(X)
    assert weights(rounded) == 2


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
def test_kept_results_serve_both_modes_without_gradients(grad, rounded):
    module = layer()
    with cached_weights(module):
        with grad():
            first = module(X)
        with torch.no_grad():
            again = module(X)
        assert weights(rounded) == 1 and torch.equal(first, again)
        module(X).sum().backward()
        assert weights(rounded) == 2 and module.weight.grad.abs().sum() > 0


def changes():
    def version(module):
        module.weight.mul_(2)

    def assigned(module):
        module.weight.data = module.weight.data * 2

    def parameter(module):
        module.weight = nn.Parameter(module.weight * 2)

    def loaded(module):
        module.load_state_dict({name: 2 * x for name, x in module.state_dict().items()})

    def dtype(module):
        module.to(torch.float64)

    def formats(module):
        module.spec = QuantSpec(weight=MXInt(4))

    def masked(module):
        attach_mask(module, module.weight < 0, {})

    def mask(module):
        attach_mask(module, module.weight > 0, {})
        module(X)
        attach_mask(module, module.weight < 0, {})

    def stepped(module):
        module.weight.grad = torch.ones_like(module.weight)
        torch.optim.SGD(module.parameters(), lr=0.1).step()

    return [version, assigned, parameter, loaded, dtype, formats, masked, mask, stepped]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_what_changes_is_rounded_again(change):
    module = layer()
    with cached_weights(module), torch.no_grad():
        before = module(X)
        change(module)
        x = X.to(module.weight.dtype)
        after = module(x)
        again = module(x)
    with torch.no_grad():
        assert torch.equal(after, module(x)) and torch.equal(again, after)
    assert not torch.equal(after.float(), before)


def test_learned_scales_count_as_a_change():
    module = layer(QuantSpec(weight=ScaleInteger(4), gradient="lsq"))
    module.start_scales("weight", module.weight)
    with cached_weights(module), torch.no_grad():
        before = module(X)
        module.weight_scale.mul_(1.5)
        after = module(X)
    assert torch.equal(after, module(X)) and not torch.equal(before, after)


def test_so_many_formats_are_kept_and_the_one_used_longest_ago_is_dropped(rounded):
    module = layer()
    specs = [QuantSpec(data_in=MXInt(8), weight=MXInt(width)) for width in (4, 6, 8)]
    expected = [layer(spec)(X) for spec in specs]
    rounded.clear()
    with cached_weights(module, formats=2), torch.no_grad():
        for index, count in ((0, 1), (1, 2), (0, 2), (1, 2), (2, 3), (1, 3), (0, 4), (2, 5)):
            module.spec = specs[index]
            assert torch.equal(module(X), expected[index]) and weights(rounded) == count
        module.spec = QuantSpec(weight=MXInt(8))  # inputs in another format: the same weight
        module(X)
        assert weights(rounded) == 5
        module.weight.mul_(2)
        assert not torch.equal(module(X), expected[2]) and weights(rounded) == 6


def test_what_draws_is_never_kept(rounded):
    module = layer(QuantSpec(weight=Binary(stochastic=True)))
    with cached_weights(module), torch.no_grad():
        assert not torch.equal(module(X), module(X))
    assert weights(rounded) == 2


def test_a_write_into_the_table_of_an_embedding_is_noticed():
    """`max_norm` rescales rows of the rounded table in place."""
    table = nn.Embedding(10, 4, max_norm=0.5)
    module = q.QuantEmbedding.from_float(table, QuantSpec(weight=MXInt())).eval()
    index = torch.arange(10)
    with cached_weights(module), torch.no_grad():
        outputs = [module(index) for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_copies_know_nothing_of_it_and_nesting_keeps_it(rounded):
    model = nn.Sequential(layer(), nn.ReLU())
    keys = list(model.state_dict())
    with cached_weights(model), torch.no_grad():
        model(X)
        with cached_weights(model[0]):
            model(X)
        model(X)
        assert weights(rounded) == 1 and list(model.state_dict()) == keys
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            rounded.clear()
            assert torch.equal(twin(X), model(X)) and weights(rounded) == 1
            assert (
                twin[0] not in weight_cache._shelves
                and vars(twin[0]).keys() == vars(model[0]).keys()
            )
    assert len(weight_cache._shelves) == 0


def test_it_is_freed_after_an_error_and_threads_agree():
    module = layer()
    with pytest.raises(RuntimeError, match="stop"), cached_weights(module):
        raise RuntimeError("stop")
    assert module not in weight_cache._shelves
    expected, found = module(X).detach(), []

    def run():
        with torch.no_grad(), cached_weights(module):
            found.extend(module(X) for _ in range(50))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200 and all(torch.equal(y, expected) for y in found)


def test_a_compiled_model_rounds_by_itself():
    module = layer()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with cached_weights(module), torch.no_grad():
        assert torch.equal(compiled(X), module(X))
        module.weight.mul_(2)
        assert torch.equal(compiled(X), module(X))
    assert from_key(module.spec.weight.key) == MXInt()


def test_nothing_is_kept_of_large_models(monkeypatch):
    layer, x = q.QuantLinear(8, 4, config={"name": "mxint"}).eval(), torch.randn(3, 8)
    size = sum(parameter.nbytes for parameter in layer.parameters())
    for limit, kept in ((size - 1, 0), (size, size)):
        monkeypatch.setattr(weight_cache, "MAX_CACHED_BYTES", limit)
        with weight_cache.cached_weights(layer), torch.no_grad():
            assert torch.equal(layer(x), layer(x))
            assert weight_cache.cached_bytes(layer) == kept


def test_half_a_gibibyte_of_parameters_is_cached():
    layer = q.QuantLinear(8, 4, config={"name": "mxint"}).eval()
    model = nn.Sequential(layer)
    model.table = nn.Parameter(torch.empty(2**27))  # never written, so it takes no memory
    with weight_cache.cached_weights(model), torch.no_grad():
        model(torch.ones(3, 8))
        assert weight_cache.cached_bytes(model) == sum(x.nbytes for x in layer.parameters())
