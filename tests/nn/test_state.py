"""Everything that changes an answer is in the state dict: starts of scales, ranges of training."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, stack_module_state
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from chop.formats import Integer, QuantSpec, ScaleInteger, initial_scales
from chop.nn.quantized import QuantLinear
from chop.nn.quantized.numbers import _read_once
from chop.nn.quantized.running import WINDOW, RunningMaximum, empty_range, merged_range
from chop.passes.module import quantize_module_transform_pass

CHANNEL = ScaleInteger(4, granularity="channel")
SPECS = {
    "lsq": QuantSpec(ScaleInteger(4), CHANNEL, data_out=ScaleInteger(8), gradient="lsq"),
    "auto": QuantSpec(Integer(6, "auto"), Integer(6, 4), data_out=Integer(8, "percentile")),
    "width": QuantSpec(Integer("auto", 3), Integer(6, 4)),
}
X = torch.linspace(-3, 3, 30).reshape(5, 6)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(params=SPECS)
def fresh(request):
    torch.manual_seed(0)
    rules = {"by": "type", "linear": {"config": SPECS[request.param]}}
    return quantize_module_transform_pass(Net(), rules)[0]


def trained(model, steps=6, seed=1, size=1.0, on_step=lambda: None):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(size * torch.randn(16, 6, generator=generator)) - 1).square().mean().backward()
        optimizer.step()
        on_step()
    return model


@torch.no_grad()
def answers(model, x=X):
    return model.eval()(x)


def states(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.mark.parametrize("is_trained", [False, True])
def test_evaluation_writes_nothing(fresh, is_trained):
    model = trained(fresh) if is_trained else fresh
    before = states(model)
    first = answers(model)
    answers(model, 100 * X)
    model.eval()(X)  # with gradients on
    assert torch.equal(answers(model), first)
    assert_same(before, states(model))


def test_averages_answer_by_their_own_scales_and_the_ranges_of_training(fresh):
    averages = [
        AveragedModel(fresh),
        AveragedModel(fresh, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
        AveragedModel(fresh, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    ]
    model = trained(fresh, on_step=lambda: [x.update_parameters(fresh) for x in averages])
    for average in averages:
        before, first = states(average), answers(average)
        answers(average, 100 * X)
        assert_same(before, states(average))
        assert all(x.isfinite().all() for x in before.values())
        assert torch.equal(answers(average), first)
        for one, other in zip(average.module.modules(), model.modules(), strict=True):
            if isinstance(one, QuantLinear):
                assert one.waiting == () and one.running.keys() == other.running.keys()


def test_tensors_that_are_filled_in_answer_as_the_model_they_are_from(fresh):
    model = trained(copy.deepcopy(fresh))
    expected, state = answers(model), states(model)
    filled = copy.deepcopy(fresh)
    vector_to_parameters(parameters_to_vector(model.parameters()), filled.parameters())
    for mine, other in zip(filled.buffers(), model.buffers(), strict=True):
        mine.copy_(other)
    assert torch.equal(answers(filled), expected)
    tensors, kept = states(model), states(fresh)
    with torch.no_grad():
        assert torch.equal(functional_call(fresh.eval(), tensors, (X,)), expected)
        functional_call(fresh, tensors, (100 * X,))
    assert_same(tensors, state)
    assert_same(states(fresh), kept)


def test_members_of_an_ensemble_answer_each_by_its_own_state(fresh):
    members = [trained(copy.deepcopy(fresh), seed=seed, size=3.0**seed) for seed in (0, 1, 2)]
    parameters, buffers = stack_module_state(members)
    for number, member in enumerate(members):
        tensors = {name: x[number] for name, x in (*parameters.items(), *buffers.items())}
        with torch.no_grad():
            y = functional_call(fresh.eval(), tensors, (X,))
        assert torch.equal(y, answers(member))


@pytest.mark.parametrize("assign", [False, True])
def test_the_best_state_answers_as_it_did_whatever_training_has_seen_since(fresh, assign):
    model = trained(fresh)
    expected, buffer = answers(model), io.BytesIO()
    torch.save(model.state_dict(), buffer)
    trained(model, size=30.0)
    assert not torch.equal(answers(model), expected)
    buffer.seek(0)
    model.load_state_dict(torch.load(buffer, weights_only=True), assign=assign)
    assert torch.equal(answers(model), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_keep_their_state(fresh, dtype):
    model = copy.deepcopy(fresh).to(dtype).train()
    model(X.to(dtype)).float().square().mean().backward()
    again = fresh.to(dtype)
    again.load_state_dict(model.state_dict())
    for twin in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(answers(twin, X.to(dtype)), answers(model, X.to(dtype)))
    ranges = [x for name, x in again.named_buffers() if name.endswith("_range")]
    assert all(x.dtype == torch.float32 and x.isfinite().all() for x in ranges)


def test_a_float_state_dict_loads_and_leaves_ranges():
    torch.manual_seed(0)
    model = trained(quantized_auto())
    ranges = {name: x for name, x in states(model).items() if name.endswith("_range")}
    plain = Net()
    assert len(ranges) == 4
    model.load_state_dict(plain.state_dict(), strict=True)
    after = states(model)
    assert torch.equal(after["0.weight"], plain[0].weight)
    assert_same({name: after[name] for name in ranges}, ranges)
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.bias"):
        model.load_state_dict({"0.weight": plain[0].weight})


def quantized_auto():
    rules = {"by": "type", "linear": {"config": SPECS["auto"]}}
    return quantize_module_transform_pass(Net(), rules)[0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_computes_the_same_from_the_first_step(fresh, use_reentrant):
    other, x = copy.deepcopy(fresh).train(), X.clone().requires_grad_()
    model = fresh.train()
    for size in (1.0, 4.0, 0.1):
        model.zero_grad()
        other.zero_grad()
        model(size * x).square().sum().backward()
        checkpoint(other, size * x, use_reentrant=use_reentrant).square().sum().backward()
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine.grad, its.grad)
        assert_same(states(model), states(other))


def test_training_in_evaluation_mode_starts_scales_where_gradients_arrive():
    torch.manual_seed(0)
    layer = QuantLinear.from_float(nn.Linear(6, 4), SPECS["lsq"]).eval()
    started = copy.deepcopy(layer).train()
    for model in (layer, started):
        model(X).square().sum().backward()
    assert layer.waiting == ()
    for mine, other in zip(layer.parameters(), started.parameters(), strict=True):
        assert torch.equal(mine, other) and torch.equal(mine.grad, other.grad)


def test_a_weight_that_is_loaded_or_written_before_the_start_is_what_scales_start_from():
    torch.manual_seed(0)
    layer, weight = QuantLinear.from_float(nn.Linear(6, 4), SPECS["lsq"]), torch.randn(4, 6)
    layer.load_state_dict({"weight": weight, "bias": torch.zeros(4)}, strict=False)
    with torch.no_grad():
        layer.train()(X)
    assert torch.equal(layer.weight_scale, initial_scales(CHANNEL, weight))


@pytest.mark.parametrize("rule", ["auto", "minmax", "percentile"])
def test_an_outlier_is_forgotten_after_a_window(rule):
    waiting, generator = Integer(8, rule), torch.Generator().manual_seed(0)
    layer = QuantLinear.from_float(nn.Linear(6, 4), QuantSpec(waiting)).train()

    def step(size=1.0):
        x = size * torch.randn(32, 6, generator=generator)
        layer(x)
        return x

    for _ in range(5):
        step()
    before = layer.operand_format("data_in")
    outlier = step()
    outlier[0, 0] = 1e4
    layer(outlier)
    assert layer.operand_format("data_in") == waiting.fitted(outlier)
    for _ in range(WINDOW):
        assert layer.operand_format("data_in").frac_width < 0
        step()
    assert abs(layer.operand_format("data_in").frac_width - before.frac_width) <= 1
    for _ in range(WINDOW):
        x = step(1e-3)
    assert abs(layer.operand_format("data_in").frac_width - waiting.fitted(x).frac_width) <= 1


def test_a_range_belongs_to_its_format():
    layer = QuantLinear.from_float(nn.Linear(6, 4), SPECS["auto"]).train()
    layer(X)
    state = layer.state_dict()
    other = QuantLinear.from_float(nn.Linear(6, 4), QuantSpec(Integer(4, "auto"))).eval()
    other.load_state_dict({name: x for name, x in state.items() if "out" not in name})
    assert not other.running
    layer.spec = layer.spec.with_quantizers(data_in=Integer(3, "auto"))
    assert list(layer.running) == ["data_out"]
    layer(X)
    assert layer.operand_format("data_in") == Integer(3, "auto").fitted(X)


def test_attributes_of_earlier_versions_are_read():
    spec = QuantSpec(ScaleInteger(4), CHANNEL, gradient="lsq")
    layer = QuantLinear.from_float(nn.Linear(6, 4), spec)
    layer.start_scales("weight", layer.weight)
    fields = {**vars(layer), "waiting": ("data_in", "weight")}
    earlier = QuantLinear.__new__(QuantLinear)
    earlier.__setstate__(fields)
    assert earlier.waiting == ("data_in", "weight")
    waiting = Integer(6, "auto")
    layer = QuantLinear.from_float(nn.Linear(6, 4), QuantSpec(waiting))
    fitted = waiting.fitted(X)
    for stored in ((waiting, 3.0, fitted), RunningMaximum(waiting, 3.0, fitted)):
        layer.__setstate__({**vars(layer), "_buffers": {}, "running": {"data_in": stored}})
        assert layer.running == {"data_in": RunningMaximum(waiting, 3.0, fitted)}
        assert layer.operand_format("data_in") == fitted


@pytest.mark.long
def test_a_compiled_model_follows_what_is_loaded(fresh):
    model, other = trained(copy.deepcopy(fresh)), trained(copy.deepcopy(fresh), size=20.0)
    fresh.load_state_dict(model.state_dict())
    compiled = torch.compile(fresh.eval(), fullgraph=True, backend="aot_eager")
    for source in (model, other, model):
        fresh.load_state_dict(source.state_dict())
        with torch.no_grad():
            assert torch.equal(compiled(X), answers(source))
    exported = torch.export.export(fresh, (X,)).module()
    assert torch.equal(exported(X), answers(model))


def test_ranges_of_processes_merge_to_the_narrowest_that_covers_all():
    inf = float("inf")
    empty, rest = [inf, inf, inf, *[0.0] * WINDOW], [0.0] * (WINDOW - 2)
    small, large = [4.0, 5.0, 7.0, 3.0, 2.0, *rest], [8.0, 4.0, 7.0, 1.0, 5.0, *rest]
    assert merged_range([small, empty]) == small
    assert merged_range([small, large]) == [8.0, 4.0, 7.0, 3.0, 5.0, *rest]
    assert merged_range([empty, empty]) == empty


def test_what_is_filled_in_through_data_is_read_where_nothing_was_known():
    scales, found = nn.Parameter(torch.zeros(2)), empty_range()
    for x in (scales, found):
        _read_once(x)
        x.data.copy_(torch.ones(len(x)))
        assert _read_once(x) == [1.0] * len(x)
        with torch.no_grad():
            x.copy_(torch.zeros(len(x)))
        assert not any(_read_once(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["lsq", "auto"])
def test_fake_tensors_start_nothing_and_change_no_range(kind, training):
    layer = QuantLinear(6, 128, config=SPECS[kind]).train(training)  # more scales than are listed
    before = states(layer)
    for x in (X, None):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert layer(torch.ones(5, 6) if x is None else mode.from_tensor(x)).shape == (5, 128)
    assert_same(before, states(layer))
