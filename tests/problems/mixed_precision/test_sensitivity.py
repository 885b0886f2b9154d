"""Sensitivities against what is computed by hand, by autograd and by the passes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

from chop import passes
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.problems.mixed_precision.fisher import fisher_loss_increases
from chop.problems.mixed_precision.layer_sensitivity import (
    METRICS,
    Sensitivity,
    gradient_rows,
    sensitivity,
)
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.train import calibration_batches
from tests.workloads import graph, plain, rows

WIDTHS = {"width": (2, 8)}
TWO = Integer(2, "mse")


@pytest.fixture(scope="module")
def table():
    return {(r["layer"], r["format"]): r for r in sensitivity(graph(), *rows(), ranges=WIDTHS)}


@pytest.fixture
def probe():
    return Sensitivity(PrecisionProblem(graph(), *rows(), ranges=WIDTHS), rows()[0], vectors=400)


def rounded(weight, width):
    return Integer(width, "mse").fitted(weight).round(weight)


def test_outputs_are_compared_with_one_layer_quantized(table):
    mg = graph()
    spec = QuantSpec(Integer(2, "mse"), Integer(2, "mse"))
    changed, _ = passes.quantize_transform_pass(mg, {"by": "name", "first": {"config": spec}})
    batches = calibration_batches(mg.model, rows()[0])
    changed, _ = passes.calibrate_transform_pass(changed, {"batches": batches})
    x, y = rows()[1].columns["x"], rows()[1].labels
    found = table["first", "2.mse"]
    # The rows of a batch meet one another in this model: batches as they were.
    with torch.no_grad():
        p, q = (torch.cat([m(part) for part in x.split(64)]) for m in (mg.model, changed.model))
    expected = kl_divergence(Categorical(logits=p), Categorical(logits=q)).mean().item()
    assert found["kl"] == pytest.approx(expected, rel=1e-4)
    assert found["mse"] == pytest.approx(F.mse_loss(q, p).item(), rel=1e-4)
    assert found["accuracy"] == pytest.approx((q.argmax(-1) == y).double().mean().item())
    assert found["bits"] == 2


def test_weights_are_compared_by_hand(table):
    model = graph().model
    weight = model.last.weight.detach().double()
    squares = (rounded(weight, 2) - weight).square().sum().item()
    found = table["last", "2.mse"]
    assert found["weight_error"] == pytest.approx(squares / weight.square().sum().item(), rel=1e-5)
    seen = []
    model.first.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        for batch in calibration_batches(model, rows()[0]):
            model(**batch)
    weight = model.first.weight.detach()
    squares = (rounded(weight, 2) - weight).square().sum().item()
    variance = torch.cat(seen).var(unbiased=False).item()
    assert table["first", "2.mse"]["activation_variance"] == pytest.approx(
        variance * squares, rel=1e-4
    )


def test_more_bits_are_minded_less_and_zeros_never(table):
    for layer in ("first", "last"):
        for metric in METRICS:
            assert table[layer, "8.mse"][metric] < 0.05 * table[layer, "2.mse"][metric]
    dead = [table["dead", text][metric] for text in ("2.mse", "8.mse") for metric in METRICS]
    assert all(value == 0 for value in dead[2:6] + dead[8:])
    assert dead[0] == pytest.approx(0, abs=1e-6)


def test_fisher_is_the_mean_square_of_batch_gradients(probe):
    model = graph().model
    index = torch.linspace(0, len(rows()[0]) - 1, 256).long()
    x, y = rows()[0].columns["x"][index], rows()[0].labels[index]
    total = 0
    for inputs, labels in zip(x.split(32), y.split(32), strict=True):
        loss = F.cross_entropy(model(inputs), labels)
        (gradient,) = torch.autograd.grad(loss, model.last.weight)
        total = total + 32 * gradient.double().square()
    weight = model.last.weight.detach().double()
    expected = (total / 8 * (rounded(weight, 2) - weight).square()).sum().item() / 2
    found = fisher(operands=("weight",))
    assert found["last", "2.mse"] == pytest.approx(expected, rel=1e-4)
    assert found["dead", "2.mse"] == 0  # its weights are zero
    both = fisher(per="operand", operands=("data_in", "weight", "bias"))
    assert both["last.weight", "2.mse"] == found["last", "2.mse"]
    # A layer's options are worth what its operands' are worth together.
    assert probe.measure("last", "2.mse")["fisher"] == pytest.approx(
        both["last.weight", "2.mse"] + both["last.data_in", "2.mse"]
    )
    assert both["last.bias", "2.mse"] > both["last.bias", "8.mse"] > 0
    assert not probe.model.dead.weight.requires_grad  # as it was


@pytest.mark.parametrize("layer", ["first", "last"])
def test_fisher_of_inputs_is_that_of_each_row_alone(layer):
    problem = PrecisionProblem(graph(), *rows(), ranges=WIDTHS, per="operand")
    rows_of_gradients = gradient_rows(problem, rows()[0])
    expected, model = [], plain()
    operator = model.get_submodule(layer)
    fmt = problem.layers.fit(layer, problem.layers.by_name[layer].operator, "data_in", TWO)
    for inputs, labels in rows_of_gradients.batches:
        seen = []

        def keep(module, args, seen=seen):
            seen.append(args[0].detach().requires_grad_())
            return (seen[0],)

        hook = operator.register_forward_pre_hook(keep)
        losses = F.cross_entropy(model(**inputs), labels, reduction="none")
        hook.remove()
        # B g_i of the mean loss, by differentiating the sum: rows meet one another in this model.
        (gradient,) = torch.autograd.grad(losses.sum(), seen[0])
        error = fmt.round(seen[0].detach()) - seen[0].detach()
        expected.append((gradient * error).double().square().sum(1).mean().item() / 2)
    found = fisher_loss_increases(problem, rows_of_gradients)[f"{layer}.data_in", "2.mse"]
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def fisher(**settings):
    problem = PrecisionProblem(graph(), *rows(), ranges=WIDTHS, **settings)
    return fisher_loss_increases(problem, gradient_rows(problem, rows()[0]))


@pytest.mark.long
def test_the_trace_is_that_of_the_whole_hessian(probe):
    inputs, labels = probe._batches.batches[4]
    model = plain()

    def loss(weight):
        answers = torch.func.functional_call(model, {"last.weight": weight}, (), inputs)
        return F.cross_entropy(answers, labels)

    weight = model.last.weight.detach()
    hessian = torch.func.hessian(loss)(weight).reshape(weight.numel(), weight.numel())
    squares = (rounded(weight, 2) - weight).square().sum().item()
    expected = hessian.trace().item() / weight.numel() * squares / 2
    assert probe.measure("last", "2.mse")["hessian"] == pytest.approx(expected, rel=0.1)


def test_choices_of_inputs_have_no_weights_to_compare():
    settings = {"per": "operand", "ranges": {"width": (4,)}, "operators": ("linear", "matmul")}
    problem = PrecisionProblem(graph(), *rows(), **settings)
    probe = Sensitivity(problem, rows()[0], ("kl", "weight_error", "fisher"))
    assert ("matmul.weight", "4.mse") in problem.pairs
    inputs, weight = (probe.measure(name, "4.mse") for name in ("first.data_in", "first.weight"))
    assert math.isnan(inputs["weight_error"]) and inputs["fisher"] > 0
    assert inputs["kl"] > 0 and weight["weight_error"] > 0
    assert list(weight) == ["accuracy", "kl", "weight_error", "fisher"]
    only_weights = Sensitivity(problem, rows()[0], ("weight_error",))
    assert list(only_weights.measure("first.weight", "4.mse")) == ["weight_error"]


def test_lines_are_told_as_they_come_and_wrong_metrics_before():
    seen = []
    found = sensitivity(
        graph(), *rows(), metrics=("mse",), ranges={"width": (4,)}, on_result=seen.append
    )
    assert seen == found and [line["layer"] for line in found] == ["first", "dead", "last"]
    with pytest.raises(ConfigError, match="did you mean 'fisher'"):
        sensitivity(graph(), *rows(), metrics=("fischer",))
    with pytest.raises(ConfigError, match="at least one"):
        sensitivity(graph(), *rows(), metrics=())
