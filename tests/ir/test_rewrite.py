"""Pattern rewriting: matches in order, reasons by name, and nodes that a transform has erased."""

import torch
from torch import nn

from chop import MaseGraph
from chop.ir.graph.rewrite import Match, NotRewritableError, rewrite

X = torch.randn(2, 4)


class Chain(nn.Module):
    def forward(self, x):
        return x.relu().relu().sigmoid().relu().tanh().relu()


def graph():
    return MaseGraph(Chain(), dummy_in={"x": X})


def named(node, name):
    return node.op == "call_method" and node.target == name


def test_each_match_is_transformed_after_those_before_it():
    mg = graph()

    def match(node):
        source = node.all_input_nodes[0] if node.all_input_nodes else node
        return Match(node.name, node) if named(node, "relu") and named(source, "relu") else None

    def drop(node):
        node.replace_all_uses_with(node.all_input_nodes[0])
        mg.fx_graph.erase_node(node)

    names, reasons = rewrite(mg, match, drop)
    assert names == ["relu_1"] and reasons == {}
    assert sum(named(node, "relu") for node in mg.nodes) == 3
    assert torch.equal(mg.model(X), Chain()(X))


def test_nodes_that_a_transform_erased_are_not_matched():
    mg = graph()

    def drop_with_its_reader(node):
        (reader,) = node.users
        reader.replace_all_uses_with(node.all_input_nodes[0])
        mg.fx_graph.erase_node(reader)
        mg.fx_graph.erase_node(node)

    def match(node):
        if named(node, "relu") and all(user.op == "call_method" for user in node.users):
            return Match(node.name, node)
        return None

    names, _ = rewrite(mg, match, drop_with_its_reader)
    assert names == ["relu", "relu_2"]
    assert torch.equal(mg.model(X), X.sigmoid().relu())


def test_reasons_have_the_name_of_the_node_or_the_one_given():
    def match(node):
        if named(node, "tanh"):
            raise NotRewritableError("it has hooks")
        if named(node, "sigmoid"):
            raise NotRewritableError("it is shared", "the gate")
        return

    names, reasons = rewrite(graph(), match, lambda found: None)
    assert names == [] and reasons == {"the gate": "it is shared", "tanh": "it has hooks"}
