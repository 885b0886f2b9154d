"""Every edit of a graph is seen by the model, without a look at all nodes."""

import copy
import operator
import timeit

import pytest
import torch
from torch import fx, nn

from chop import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.private.graph_edits import last_edit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return torch.add(self.second(torch.relu(self.first(x))), x, alpha=2)


@pytest.fixture
def mg():
    torch.manual_seed(0)
    return MaseGraph(Net().eval(), dummy_in={"x": torch.randn(3, 4)})


def insert_before(mg):
    graph, relu = mg.fx_graph, mg.node("relu")
    with graph.inserting_before(relu):
        new = graph.call_function(torch.tanh, (relu.args[0],))
    relu.args = (new,)


def insert_after(mg):
    graph, first = mg.fx_graph, mg.node("first")
    with graph.inserting_after(first):
        new = graph.create_node("call_method", "neg", (first,))
    mg.node("relu").replace_input_with(first, new)


def replace_by_new(mg):
    graph, relu = mg.fx_graph, mg.node("relu")
    with graph.inserting_after(relu):
        new = graph.call_function(operator.neg, (relu.args[0],))
    relu.replace_all_uses_with(new)
    graph.erase_node(relu)


def drop_dead_code(mg):
    mg.node("add").replace_all_uses_with(mg.node("second"))
    mg.fx_graph.eliminate_dead_code()


def swap(mg):
    """Moves a node that writes into its input in front of another that reads it."""
    relu, second = mg.node("relu"), mg.node("second")
    with mg.fx_graph.inserting_after(second):
        write = mg.fx_graph.call_method("zero_", (relu,))
    assert torch.any(mg.model(X) != 2 * X + mg.model.second.bias)
    second.prepend(write)


def copy_in(mg):
    relu = mg.node("relu")
    with mg.fx_graph.inserting_after(relu):
        mg.node("second").args = (mg.fx_graph.node_copy(relu, lambda node: relu),)
        mg.node("relu_1").target = torch.cos


def new_graph(mg):
    graph = copy.deepcopy(mg.fx_graph)
    mg.fx_graph = graph
    assert mg.fx_graph is graph
    next(node for node in graph.nodes if node.name == "relu").target = torch.sin


def graph_of_the_model(mg):
    mg.model.graph = copy.deepcopy(mg.fx_graph)
    mg.node("relu").target = torch.sin


def module_for_function(mg):
    mg.model.add_module("sine", nn.Tanh())
    relu = mg.node("relu")
    relu.op, relu.target = "call_module", "sine"


EDITS = {
    "target": lambda mg: setattr(mg.node("relu"), "target", torch.tanh),
    "op": module_for_function,
    "args": lambda mg: setattr(mg.node("add"), "args", (mg.node("relu"), mg.node("x"))),
    "kwargs": lambda mg: setattr(mg.node("add"), "kwargs", {"alpha": 3}),
    "update_arg": lambda mg: mg.node("second").update_arg(0, mg.node("x")),
    "update_kwarg": lambda mg: mg.node("add").update_kwarg("alpha", 5),
    "insert_arg": lambda mg: [
        setattr(mg.node("relu"), "target", torch.mul),
        mg.node("relu").insert_arg(1, 3.0),
    ],
    "replace_input_with": lambda mg: mg.node("add").replace_input_with(
        mg.node("x"), mg.node("relu")
    ),
    "replace_all_uses_with": lambda mg: mg.node("relu").replace_all_uses_with(mg.node("first")),
    "erase_node": replace_by_new,
    "eliminate_dead_code": drop_dead_code,
    "inserting_before": insert_before,
    "inserting_after": insert_after,
    "reorder": swap,
    "node_copy": copy_in,
    "fx_graph": new_graph,
    "model.graph": graph_of_the_model,
    "mg.erase": lambda mg: mg.erase(mg.node("relu")),
    "mg.replace": lambda mg: mg.replace(mg.node("relu"), nn.Tanh()),
}
X = torch.linspace(-2, 2, 8).reshape(2, 4)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.sampled(3)
def test_the_model_runs_the_nodes_as_they_are(mg, name, held):
    before = mg.model(X)
    graph = mg.fx_graph
    if held:  # nodes that were taken long before the edit
        kept = {node.name: node for node in graph.nodes}
        mg.node = lambda name: kept.get(name) or MaseGraph.node(mg, name)
        if name in ("fx_graph", "model.graph"):
            del mg.node
    EDITS[name](mg)
    expected = fx.Interpreter(mg._model, graph=mg.fx_graph).run(X)
    assert torch.equal(mg.model(X), expected)
    assert not torch.equal(expected, before)


@pytest.mark.parametrize("rename", [True, False])
def test_names_of_nodes_are_names_in_the_code(mg, rename):
    if rename:
        mg.node("relu").name = "clipped"
    assert ("clipped" in mg.model.code) == rename


def test_copies_and_pickles_see_edits_of_their_own(mg):
    for twin in (mg.copy(), copy.deepcopy(mg), MaseGraph(mg.model)):
        before = twin.model(X)
        twin.node("add").update_kwarg("alpha", 7)
        assert not torch.equal(twin.model(X), before)
    twin = mg.copy()
    before = mg.model(X)
    twin.node("relu").target = torch.sin
    assert torch.equal(mg.model(X), before)


def test_two_graphs_of_one_model_see_the_edits_of_each_other(mg):
    other = MaseGraph(mg.model)
    before = mg.model(X)
    other.node("relu").target = torch.cos
    assert not torch.equal(mg.model(X), before)
    assert torch.equal(other.model(X), mg.model(X))


def test_what_is_no_edit_generates_no_code(mg, monkeypatch):
    calls = []
    model = mg.model
    monkeypatch.setattr(type(model), "recompile", lambda self: calls.append(self))
    mg.node("relu").meta["mase"] = MaseMetadata()
    mg.node("relu").meta = {}
    str(mg.fx_graph), mg.fx_graph.lint(), mg.fx_graph.find_nodes(op="call_module")
    mg.replace(mg.node("first"), nn.Linear(4, 4))
    assert mg.model is model
    assert calls == []
    mg.node("relu").target = torch.tanh
    assert mg.model is model
    assert mg.model is model
    assert calls == [model]


@pytest.mark.long
def test_the_price_of_the_model_does_not_grow_with_the_graph():
    def price(layers):
        mg = MaseGraph(nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)]))
        assert len(mg.nodes) == layers + 2
        return min(timeit.repeat(lambda: mg.model, number=200, repeat=5))

    assert price(300) < 5 * price(3)


def test_stamps_are_never_used_twice():
    first, second = fx.Graph(), fx.Graph()
    stamps = [last_edit(first), last_edit(second)]
    for graph in (first, second, first):
        graph.create_node("placeholder", "x")
        stamps.append(last_edit(graph))
        assert last_edit(graph) == stamps[-1]
    assert len(set(stamps)) == len(stamps)


MUTATORS = {"_update_args_kwargs", "_remove_from_list", "_replace_input_with", "_prepend"}
COMPARISONS = {"__lt__", "__gt__", "__le__", "__ge__"}
ATTRIBUTES = {"graph", "name", "op", "target", "type", "_args", "_kwargs", "meta", "users"}
LINKS = {"_erased", "_prev", "_next", "_input_nodes", "_repr_fn", "_sort_key"}


def test_torch_edits_nodes_as_the_stamps_expect():
    """Fails first where torch has another way to edit a node, or makes nodes elsewhere."""
    known = MUTATORS | COMPARISONS | ATTRIBUTES | LINKS | {"__new__", "__init__", "__doc__"}
    assert set(vars(torch._C._NodeBase)) == known
    graph = fx.Graph()
    last_edit(graph)
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    assert type(node).__mro__[1:3] == (fx.Node, torch._C._NodeBase)
    assert all(type(n) is type(node) for n in (graph._root, *graph.nodes))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_follows_edits_of_the_graph(mg):
    x = torch.randn(3, 4)
    compiled = torch.compile(mg.model, backend="eager")
    before = compiled(x)
    mg.node("relu").target = torch.tanh
    after = mg.model(x)
    assert not torch.equal(before, after)
    assert torch.equal(compiled(x), after)
    assert torch.equal(torch.compile(mg.model, backend="eager")(x), after)
