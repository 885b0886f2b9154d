import pytest
import torch

from chop.errors import ConfigError
from chop.ir.batches import observe_nodes, run_layerwise, select_inputs


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
