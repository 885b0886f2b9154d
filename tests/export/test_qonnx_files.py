"""QONNX files with odd names, types and opsets are read like others; broken ones are refused."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from chop.errors import CheckpointError, ConfigError
from tests.export.qonnx_models import Model, Quant, expected
from tests.export.test_qonnx_reader import rows, weighted

pytest.importorskip("onnx", reason="onnx reads files of QONNX")

from chop.export.qonnx.reader import read_graph

NAMES = ("in", "None", "self", "meta", "graph", "code", "forward")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_names_of_python_and_of_modules_are_names_of_nodes_and_inputs(name, tmp_path):
    model = Model(8)
    weight = model.quant(model.random(8, 6), 0.5, 3)
    model.node("MatMul", model.quant(name, 0.25, 4), weight, name=name)
    proto = model.proto()
    proto.graph.input[0].name = name
    path, x = tmp_path / "model.onnx", rows(model)
    onnx.save(proto, path)
    evaluator = ReferenceEvaluator(proto, new_ops=[Quant])
    wanted = np.concatenate([evaluator.run(None, {name: row[None]})[0] for row in x])
    assert np.array_equal(read_graph(path).model(torch.from_numpy(x)).detach().numpy(), wanted)


def with_inputs(model, **shapes):
    proto = model.proto()
    del proto.graph.input[:]
    for name, shape in shapes.items():
        value = onnx.helper.make_tensor_value_info(name.replace("__", "."), 1, shape)
        proto.graph.input.append(value)
    return proto


def test_inputs_whose_names_are_equal_as_identifiers_stay_apart(tmp_path):
    model = Model(8)
    model.node("Sub", model.quant("a.1", 0.25, 4), model.quant("a_1", 0.25, 4))
    onnx.save(with_inputs(model, a__1=[1, 8], a_1=[1, 8]), tmp_path / "model.onnx")
    mg = read_graph(tmp_path / "model.onnx")
    assert mg.model(torch.full((3, 8), 0.5), torch.full((3, 8), 0.25)).eq(0.25).all()


JOINED = {
    "batches of inputs": ("MatMul", {"a": [1, 8], "b": [8, 4]}, "input 'b': its batch is 8"),
    "matrices": ("MatMul", {"a": [1, 1], "b": [1, 8]}, r"\(MatMul\): it joins rows of the batch"),
    "broadcasts": ("Add", {"a": [1, 8], "b": [1, 3, 8]}, r"got \[1, 8\] and \[1, 3, 8\]"),
}


@pytest.mark.parametrize("name", JOINED)
def test_nodes_that_join_rows_are_refused(name, tmp_path):
    operator, shapes, reason = JOINED[name]
    model = Model(8)
    model.node(operator, model.quant("a", 0.25, 4), model.quant("b", 0.25, 4))
    onnx.save(with_inputs(model, **shapes), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=reason):
        read_graph(tmp_path / "model.onnx")


def test_constants_with_more_dimensions_than_activations_are_refused(tmp_path):
    for shape in ([1, 8, 1], [1, 1, 1]):
        model = Model(8)
        y = weighted(model, model.quant("global_in", 0.25, 4), columns=8, rows=8)
        model.node("Add", y, model.random(*shape))
        with pytest.raises(ConfigError, match=r"\(Add\): expected a constant with one number"):
            read_graph(model.save(tmp_path))
    model = Model(8)
    weighted(model, model.quant("global_in", np.full((1, 1, 1), 0.25), 4))
    with pytest.raises(ConfigError, match="its scale has more dimensions"):
        read_graph(model.save(tmp_path))


def test_bias_with_scales_along_the_last_axis_is_not_one_of_the_second(tmp_path):
    """Two tokens and two channels: a batch norm would add the bias by token."""
    model = Model(2, 4)
    y = model.node(
        "MatMul", model.quant("global_in", 0.25, 4), model.quant(model.random(4, 2), 0.5, 3)
    )
    model.node("Add", y, model.quant(model.random(2), np.array([0.25, 0.3]), 8))
    with pytest.raises(ConfigError, match=r"\(Add\): expected a constant .* per channel"):
        read_graph(model.save(tmp_path))


def test_nodes_of_constants_have_the_opset_of_the_file(tmp_path):
    model = Model(8)
    x = model.quant("global_in", 0.25, 4)
    shift = model.node("Unsqueeze", model.random(8), axes=[0])  # an input since opset 13
    weighted(model, model.quant(model.node("Relu", model.node("Add", x, shift)), 0.25, 4))
    proto, given = model.proto(), rows(model)
    proto.opset_import[0].version = 11
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    assert np.array_equal(
        read_graph(path).model(torch.from_numpy(given)).detach().numpy(), expected(path, given)
    )


def test_types_that_only_onnx_has_are_constants(tmp_path):
    model = Model(8)
    types = {"BFLOAT16": [1.5] * 48, "INT4": [-3] * 48, "STRING": [b"text"]}
    for name, numbers in types.items():
        shape = [1] if name == "STRING" else [8, 6]
        kind = getattr(onnx.TensorProto, name)
        model.initializers.append(onnx.helper.make_tensor(name, kind, shape, numbers))
    x = model.quant("global_in", 0.25, 4)
    results = [model.node("MatMul", x, name) for name in ("BFLOAT16", "INT4")]
    graph = read_graph(model.save(tmp_path, *results)).model
    first, second = graph(torch.ones(1, 8))
    assert first.eq(12).all()
    assert second.eq(-24).all()


def damaged(change):
    model = Model(8)
    weighted(model, model.quant("global_in", 0.25, 4))
    proto = model.proto()
    change(proto.graph)
    return proto


DAMAGED = {
    "no output of a node": (lambda graph: graph.node[0].output.pop(), "has no output of its own"),
    "one output of two nodes": (
        lambda graph: graph.node.append(graph.node[0]),
        "has no output of its own",
    ),
    "no outputs": (lambda graph: graph.output.pop(), "has no outputs"),
    "a cycle": (
        lambda graph: graph.node[0].input.__setitem__(0, graph.node[-1].output[0]),
        "model.onnx': no node computes",
    ),
    "another output": (
        lambda graph: setattr(graph.output[0], "name", "nowhere"),
        "model.onnx': output of the model: no node computes 'nowhere'",
    ),
    "sizes": (
        lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**60),
        "has the sizes",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_graphs_are_refused(name, tmp_path):
    change, reason = DAMAGED[name]
    onnx.save(damaged(change), tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match=reason):
        read_graph(tmp_path / "model.onnx")


def test_sizes_below_one_are_not_fixed(tmp_path):
    def change(graph):
        graph.input[0].type.tensor_type.shape.dim[1].dim_value = -8

    onnx.save(damaged(change), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="Only the first one, the batch, may be free"):
        read_graph(tmp_path / "model.onnx")
