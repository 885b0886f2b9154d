import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.quantization.rounding.columns import Solver, rounding_grid
from chop.quantization.rounding.row_weights import moderated, row_weights, second_moments
from chop.quantization.walk.walk import Walk
from tests.networks import Made


class Attend(nn.Module):
    """Two linear layers around a causal attention; a mask hides tokens."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4, bias=False)
        self.value = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 5)
        self.unused = nn.Linear(4, 4)

    def forward(self, x, attention_mask):
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = causal & attention_mask[:, None, :].bool()
        self.unused(x)
        y = F.scaled_dot_product_attention(x, self.key(x), self.value(x), attn_mask=mask)
        return {"loss": y.sum(), "logits": self.head(y)}


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {"x": torch.randn(2, 6, 4, generator=generator), "attention_mask": mask}


def graph():
    torch.manual_seed(0)
    return MaseGraph(Attend().eval(), dummy_in=batch())


def get_weights(mg, batches):
    nodes = [node for node in mg.nodes if mg.operator(node).name == "linear"]
    return {node.target: w for node, w in row_weights(Walk(mg, batches), nodes).items()}


def test_the_first_token_counts_most_and_hidden_tokens_count_nothing():
    mg = graph()
    # all queries are alike and the first key is what they ask for: an attention sink
    rows = batch()
    rows["x"][:, 0] *= 6
    found = get_weights(mg, [rows] * 20)
    value = torch.stack(found["value"]).mean(0).view(2, 6)
    assert (value[0, 0] > value[0, 1:]).all()
    assert (value[1, 4:] == 0).all() and (value[1, :4] > 0).all()
    assert (torch.stack(found["head"]).view(-1, 2, 6)[:, 1, 4:] == 0).all()
    for weights in found.values():
        assert torch.cat(weights).mean().item() == pytest.approx(1, rel=1e-5)


def test_the_mean_weight_is_the_trace_of_the_fisher_information():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    mg, x = MaseGraph(net, dummy_in={"input": torch.randn(5, 3)}), torch.randn(5, 3)
    found = get_weights(mg, [{"input": x.repeat(4000, 1)}])
    for path in ("0", "2"):
        told = found[path][0].view(-1, 5).double().mean(0)
        expected = torch.stack([fisher_trace(net, path, row) for row in x])
        torch.testing.assert_close(told, expected / expected.mean(), rtol=0.1, atol=0.02)


def fisher_trace(net, path, row):
    """Sum over labels of p |d log p / d z|^2, z the layer's output, by its definition."""
    z = net[0](row.double().float()).detach().double().requires_grad_()
    y = z if path == "0" else None
    if path == "0":
        logits = F.linear(z.relu(), net[2].weight.double(), net[2].bias.double())
    else:
        y = net[2](z.float().relu()).detach().double().requires_grad_()
        logits = y
    log_p = logits.log_softmax(-1)
    total = 0
    for label in range(3):
        (gradient,) = torch.autograd.grad(log_p[label], y, retain_graph=True)
        total = total + log_p[label].exp().detach() * gradient.square().sum()
    return total


def test_the_graph_is_left_as_it_was_and_quantizers_are_off_meanwhile():
    mg = graph()
    expected = get_weights(mg, [batch()])
    spec = {"config": QuantSpec(weight=Integer(2, 0))}
    rough, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": spec})
    rough.model.train()
    rough.model.head.weight.requires_grad_(False)
    specs = {n: rough.modules[n].spec for n in ("key", "value", "head")}
    found = get_weights(rough, [batch()])
    assert all(torch.equal(found[k][0], expected[k][0]) for k in expected)
    assert rough.model.training
    assert not rough.model.head.weight.requires_grad
    assert rough.model.value.weight.requires_grad and rough.model.value.weight.grad is None
    assert all(rough.modules[n].spec == spec for n, spec in specs.items())


def test_single_numbers_and_images_have_weights_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 1))
    mg, x = MaseGraph(net, dummy_in={"input": torch.randn(2, 1, 7, 7)}), torch.randn(4, 1, 7, 7)
    nodes = [node for node in mg.nodes if mg.operator(node).is_product]
    conv, linear = row_weights(Walk(mg, [{"input": x}]), nodes).values()
    assert conv[0].shape == (36,) and linear[0].shape == (4,)
    # the gradient with respect to pixel (b, h, w) is noise_b times its weights in the last layer
    of_pixels = net[2].weight.view(2, 9).square().sum(0)
    expected = (linear[0][:, None] * of_pixels).flatten()
    torch.testing.assert_close(conv[0], expected / expected.mean())


def test_a_model_without_a_gradient_is_refused():
    detached = Made(lambda m, x: m.fc(x).detach(), fc=nn.Linear(2, 2))
    mg = MaseGraph(detached, dummy_in={"x": torch.randn(2, 2)})
    with pytest.raises(ConfigError, match="use row_weights 'uniform'"):
        get_weights(mg, [{"x": torch.randn(2, 2)}])


def test_few_rows_with_most_of_the_gradient_leave_the_others_their_say():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(24, 24, generator=generator)
    x, unseen = (torch.randn(400, 24, generator=generator) @ mix for _ in range(2))
    weight = torch.randn(8, 24, generator=generator).double()
    found = torch.full((400,), 1e-4)
    found[:6], found[399] = 60.0, 0.0
    (mixed,) = moderated({"layer": [found]})["layer"]
    torch.testing.assert_close(mixed[[0, 6, 399]], torch.tensor([30.5, 0.50005, 0.0]))
    grid = rounding_grid(Integer(3, 0), weight)

    def errors(rounded):
        return [((rounded - weight) @ y.T.double()).square().sum() for y in (unseen, x[:6])]

    def solved(weights):
        hessian = second_moments([(x[None], weights)])[0]
        return errors(Solver(actorder=True).solve(weight, hessian, grid))

    nearest, raw, moderate = errors(grid.round(weight)), solved(found), solved(mixed)
    assert raw[0] > nearest[0] > moderate[0]
    assert moderate[1] < nearest[1]
