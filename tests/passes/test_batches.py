"""Batches of graphs and of passes: what the model refuses is refused, and what is no number."""

import contextlib

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError, GuardError
from chop.ir.batches import observe_nodes, run_layerwise, select_inputs
from chop.ir.propagate import bind_inputs
from tests.subcases import subcases

from .conftest import with_metadata


def batches():
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(rows, 1, 6, 7, generator=generator)} for rows in (2, 5, 3)]


def results(mg, path):
    seen = []
    hook = mg.modules[path].register_forward_hook(lambda _, args, y: seen.append((args[0], y)))
    with torch.no_grad():
        for batch in batches():
            mg.model(**batch)
    hook.remove()
    return seen


def test_both_ways_show_what_the_model_computes(net_graph):
    expected = results(net_graph, "fc2")
    watched, stepped, live = [], {}, []

    def see(node, values, result):
        if node.name == "fc2":
            watched.append((values[node.args[0]], result))

    def step(node, runs):
        live.append(max(len(values) for values in runs))
        if node.op == "output":
            stepped["count"] = len(runs)
        for number, values in enumerate(runs):
            if node.name == "fc2":
                stepped[number] = values[node.args[0]]

    observe_nodes(net_graph, batches(), see)
    run_layerwise(net_graph, batches(), step)
    assert stepped.pop("count") == len(watched) == 3
    for number, (x, y) in enumerate(expected):
        assert torch.equal(watched[number][0], x) and torch.equal(watched[number][1], y)
        assert torch.equal(stepped[number], x)
    # what no later node reads is gone
    assert max(live) <= 3 < len(net_graph.nodes)


def test_a_layer_changed_on_the_way_works_changed_on_every_batch(net_graph):
    def silence(node, runs):
        if node.name == "fc1":
            net_graph.modules["fc1"].weight.zero_()
            net_graph.modules["fc1"].bias.fill_(2.0)
        if node.name == "fc2":
            assert all((values[node.args[0]] == 2.0).all() for values in runs)
            seen.append(len(runs))

    seen = []
    run_layerwise(net_graph, batches(), silence)
    assert seen == [3]


def test_a_run_ends_before_the_last_node_that_is_visited(net_graph):
    visited, ran = [], []
    hooks = [
        net_graph.modules[path].register_forward_hook(lambda *_, path=path: ran.append(path))
        for path in ("fc1", "fc2")
    ]
    (last,) = (node for node in net_graph.nodes if node.name == "fc2")
    run_layerwise(net_graph, batches(), lambda node, _: visited.append(node), until=last)
    for hook in hooks:
        hook.remove()
    assert visited[-1] is last and visited == list(net_graph.nodes)[: len(visited)]
    assert set(ran) == {"fc1"}


@pytest.mark.parametrize("run", [observe_nodes, run_layerwise])
def test_modes_and_gradients_come_back_after_an_error(net_graph, run):
    def fail(node, *_):
        assert not torch.is_grad_enabled() and not net_graph.model.training
        if node.name == "fc1":
            raise RuntimeError("stop")

    net_graph.model.train()
    before = net_graph.modules["bn"].running_mean.clone()
    with pytest.raises(RuntimeError, match="stop"):
        run(net_graph, batches(), fail)
    assert torch.is_grad_enabled()
    assert all(module.training for module in net_graph.model.modules())
    assert torch.equal(net_graph.modules["bn"].running_mean, before)


def test_only_what_the_graph_takes_is_passed_on(net_graph):
    given = {**batches()[0], "labels": torch.ones(2), "name": "first"}
    (known,) = select_inputs(net_graph, [given], "here")
    assert list(known) == ["x"]
    assert set(given) == {"x", "labels", "name"}
    with pytest.raises(ConfigError, match="here: expected mappings of inputs by name, got list"):
        list(select_inputs(net_graph, [[1]], "here"))
    with pytest.raises(ConfigError, match="here: expected at least one batch, got none"):
        list(select_inputs(net_graph, [], "here"))


FORMAT = {"name": "mxint", "width": 4, "block_size": 4}


class Branches(nn.Module):
    """Long inputs, a scale and a mask take other ways."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x, scale=1.0, mask=None):
        if x.shape[1] > 6:
            return self.last(x)
        y = self.first(self.norm(x)).relu() * scale
        return self.last(y if mask is None else y * mask).mean(1)


def batch(tokens=5, seed=0):
    return {"x": torch.randn(2, tokens, 4, generator=torch.Generator().manual_seed(seed))}


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    return with_metadata(MaseGraph(Branches().eval(), dummy_in=batch()))


@pytest.fixture(scope="module")
def quantized(graph):
    rule = {"config": {"weight": FORMAT, "data_in": FORMAT}}
    return passes.quantize_transform_pass(graph, {"by": "type", "linear": rule})[0]


PROFILE = {
    "target_activation_nodes": ["linear"],
    "activation_statistics": {"range_min_max": {"dims": "all"}},
    "quiet": True,
}


def prune(mg, batches, method):
    given = [{**b, "labels": torch.zeros(2).long()} if isinstance(b, dict) else b for b in batches]
    return passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "method": method}, "batches": given}
    )


PASSES = {
    "smooth": lambda mg, q, b: passes.smoothquant_transform_pass(mg, {"batches": b}),
    "awq": lambda mg, q, b: passes.awq_transform_pass(mg, {"batches": b, "weight": FORMAT}),
    "awq uniform": lambda mg, q, b: passes.awq_transform_pass(
        mg, {"batches": b, "weight": FORMAT, "row_weights": "uniform"}
    ),
    "gptq": lambda mg, q, b: passes.gptq_transform_pass(q, {"batches": b}),
    "gptq uniform": lambda mg, q, b: passes.gptq_transform_pass(
        q, {"batches": b, "row_weights": "uniform"}
    ),
    "wanda": lambda mg, q, b: prune(mg, b, "wanda"),
    "movement": lambda mg, q, b: prune(mg, b, "movement"),
    "profile": lambda mg, q, b: passes.profile_statistics_analysis_pass(
        mg, {**PROFILE, "input_generator": b}
    ),
    "calibrate": lambda mg, q, b: passes.calibrate_transform_pass(
        q, {"batches": b, "static_scales": True}
    ),
}
REFUSED = {
    "another branch": (batch(8), "batch 1: the graph was captured for x.shape"),
    "an argument": ({**batch(), "scale": 2.0}, "batch 1: the graph was captured without scale"),
    "a mask": (
        {**batch(), "mask": torch.zeros(2, 5, 1)},
        "batch 1: the graph was captured without mask",
    ),
    "a rank": (
        {"x": torch.randn(2, 4)},
        "batch 1: the graph was captured for x as a tensor with 3 dimensions",
    ),
    "nothing": ({}, "batch 1: the graph was captured with the inputs x, got no x"),
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.sampled(3)
def test_a_batch_that_the_model_refuses_is_refused(graph, quantized, name):
    for wrong, message in REFUSED.values():
        with pytest.raises((GuardError, TypeError)):
            graph.model(**wrong)
        with pytest.raises(GuardError, match=message):
            PASSES[name](graph, quantized, [batch(), wrong])


@pytest.mark.parametrize("name", [name for name in PASSES if name != "movement"])
@pytest.mark.sampled(3)
def test_batches_may_be_tensors_and_tuples(graph, quantized, name):
    given = batch()["x"]
    expected = PASSES[name](graph, quantized, [{"x": given, "mask": None, "index": 3}])[1]
    assert str(PASSES[name](graph, quantized, [given])[1]) == str(expected)
    assert str(PASSES[name](graph, quantized, [(given,)])[1]) == str(expected)
    assert str(PASSES[name](graph, quantized, [[given]])[1]) == str(expected)
    with pytest.raises(ConfigError, match=r"at most 1 inputs in order \(x\), got 2"):
        PASSES[name](graph, quantized, [(given, torch.zeros(2))])


@subcases("value", [float("nan"), float("inf")])
@subcases("name", PASSES)
def test_a_row_that_is_not_finite_is_named(graph, quantized, name, value):
    wrong = batch(seed=1)
    wrong["x"][1, 2, 0] = value
    names = "row 1 of batch 1 causes|batch 1 is nan .row 1 of its input 'x'"
    told = name in ("profile", "calibrate")
    with (
        pytest.warns(UserWarning, match=names) if told else pytest.raises(ConfigError, match=names)
    ):
        PASSES[name](graph, quantized, [batch(), wrong])


class Regions(nn.Module):
    """Regions of autocast and without gradients, whose ends are nodes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.norm(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.first(y)
        return self.last(y.float())


def test_regions_of_a_graph_end_with_it_and_do_not_reach_what_visits_it():
    torch.manual_seed(0)
    batches = [batch(seed=seed) for seed in range(3)]
    mg = with_metadata(MaseGraph(Regions().eval(), dummy_in=batch()))
    expected = [mg.model(**given) for given in batches]
    found, states = [], set()

    def see(*_):
        states.add((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    def step(node, runs):
        see()
        if node.op == "output":
            found.extend(values[node.args[0]] for values in runs)

    observe_nodes(mg, batches, see)
    run_layerwise(mg, batches, step)
    assert states == {(False, False)}
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")

    def fail(node, *_):
        if node.name == "first":
            raise ConfigError("stop")

    for run in (observe_nodes, run_layerwise):
        with contextlib.suppress(ConfigError):
            run(mg, batches, fail)
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_one_way_in_for_everything_that_runs_nodes(graph):
    assert torch.equal(bind_inputs(graph.model, batch())[0], batch()["x"])
    with pytest.raises(GuardError, match="captured for x.shape"):
        bind_inputs(graph.model, batch(8))
    with pytest.raises(GraphError, match="captured for x.shape"):
        passes.add_common_metadata_analysis_pass(graph.copy(), {"dummy_in": batch(8)})
    with pytest.raises(GraphError, match="no input 'y'"):
        bind_inputs(graph.model, {**batch(), "y": 1})
    with pytest.raises(GuardError, match="without scale.*by name: x"):
        graph.model.admit((batch()["x"], 1), {})
    with pytest.raises(GuardError, match="x by name too"):
        graph.model.admit((batch()["x"],), batch())
    assert list(graph.model.admit((batch()["x"],), {"scale": 1.0})) == ["x"]
    labels = {"labels": torch.ones(2), "index": torch.ones(2)}
    assert list(*select_inputs(graph, [{**batch(), **labels}], "here")) == ["x"]
