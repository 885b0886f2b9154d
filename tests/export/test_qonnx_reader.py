"""QONNX files read as quantized graphs: equal to onnx's evaluator with QONNX's definitions."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from chop import passes
from chop.errors import CheckpointError, ConfigError
from chop.export.qonnx import target as qonnx
from chop.export.targets import target
from chop.formats import Binary, Integer, ScaleInteger
from chop.integer.golden import golden_values
from tests.export.qonnx_models import Model, cnv, expected, tfc
from tests.export.test_qonnx import FORMATS, quantized
from tests.integer.graphs import quantized_graph, test_rows

pytest.importorskip("onnx", reason="onnx reads files of QONNX")

from chop.export.qonnx.formats import Constant, Rounding, covering_format
from chop.export.qonnx.reader import read_graph, read_module

QONNX_RUNS = pytest.mark.skipif(
    find_spec("qonnx") is None, reason="qonnx executes its files: pip install qonnx"
)


def rows(model, count=9, seed=1, scale=1.5):
    x = np.random.default_rng(seed).standard_normal((count, *model.shape)) * scale
    return x.astype(np.float32)


def graph_and_rows(model, folder, *outputs, **settings):
    """The graph of a file, rows, and their results by onnx's evaluator."""
    path, x = model.save(folder, *outputs), rows(model, **settings)
    return read_graph(path), torch.from_numpy(x), torch.from_numpy(expected(path, x))


def lowered(mg, x):
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return passes.lower_to_integer_transform_pass(mg, {"batches": [{"global_in": x}]})


def weighted(model, x, bits=3, rows=6, columns=8, scale=0.5, **settings):
    weight = model.quant(model.random(columns, rows), scale, bits, **settings)
    return model.node("MatMul", x, weight)


def residual(model):
    x = model.quant("global_in", 0.25, 4)
    y = model.quant(model.node("Relu", weighted(model, x, rows=8)), 0.25, 4)
    return weighted(model, model.quant(model.node("Add", x, y), 0.5, 4))


def different_sums(model):
    """Two layers, whose results have other scales, are joined and added."""
    x = model.quant("global_in", 0.25, 4)
    y = model.quant(weighted(model, x), 0.5, 6)
    z = model.quant(model.node("Relu", weighted(model, x)), 0.25, 4, signed=0)
    both = model.quant(model.node("Sub", y, z), 0.5, 6)
    joined = model.node("Concat", y, model.node("Relu", both), z, axis=1)
    return weighted(model, joined, columns=18)


def shared(model):
    """One rounding is read three times, and twice rounded again."""
    x = model.quant(weighted(model, model.quant("global_in", 0.25, 4)), 0.5, 5)
    y = model.quant(x, 2.0, 3)
    sums = model.node("Add", weighted(model, x, columns=6), weighted(model, y, columns=6))
    return model.node("Add", sums, model.random(6))


def gemm(model):
    weight = model.quant(model.random(6, 8), np.full((6, 1), 0.5), 4, narrow=1)
    bias = model.quant(model.random(6), 0.125, 8)
    x = model.quant("global_in", 0.25, 4)
    return model.node("Gemm", x, weight, bias, transB=1)


def float_bias(model):
    x = model.node("Gemm", model.quant("global_in", 0.25, 4), model.random(8, 6), model.random(6))
    x = model.node("Add", weighted(model, model.quant(x, 1.0, 4), columns=6), model.random(1, 6))
    x = model.node("Div", model.node("Mul", x, model.constant(3.0)), model.constant(0.7))
    return model.node("Sub", model.constant(1.0), model.node("Sub", x, model.random(6)))


def scales_by_channel(model):
    scale = model.generator.uniform(0.1, 0.7, (1, 6))
    x = weighted(model, model.quant("global_in", 0.3, 4, narrow=1), scale=scale)
    x = model.node("Add", x, model.quant(model.random(6), 0.3 * scale[0], 16))
    return model.quant(x, 0.7, 5, signed=0)


def roundings(model):
    x = model.quant("global_in", 0.25, 4, mode="FLOOR")
    weight = model.quant(model.random(8, 6), 0.25, 3, mode="CEIL")
    x = model.quant(model.node("MatMul", x, weight), 0.5, 1, signed=0)
    x = weighted(model, x, columns=6, mode="DOWN", narrow=1)
    return weighted(model, model.quant(x, 0.5, 1), columns=6, bits=1)


def functions(model):
    x = model.quant("global_in", 0.25, 5)
    parts = [model.quant(model.node(kind, x), 2.0**-6, 8) for kind in ("Sigmoid", "Tanh")]
    clip = model.node("Clip", x, model.constant(-1.0), model.constant(1.0))
    parts.append(model.quant(clip, 2.0**-6, 8))
    return weighted(model, model.node("Concat", *parts, axis=-1), columns=24)


def products(model):
    x = model.quant("global_in", 0.25, 4)
    y = model.quant(weighted(model, x, rows=8), 0.25, 4)
    return weighted(model, model.quant(model.node("Mul", x, y), 0.5, 6))


def scaled(model):
    """Scales ahead of the first rounding and after the last, as in files of brevitas."""
    x = model.node("Sub", model.node("Mul", "global_in", model.constant(2.0)), model.constant(1.0))
    x = model.quant(model.node("Add", x, model.random(8)), 0.25, 6)
    x = weighted(model, x)
    x = model.norm(model.node("Sub", x, model.constant(0.5)), 6)
    return model.node("Div", model.node("Add", x, model.random(1)), model.constant(3.0))


VECTORS = [scaled, residual, different_sums, shared, gemm, float_bias, scales_by_channel, roundings]
VECTORS += [functions, products]


def pooled(model):
    x = model.quant("global_in", 0.25, 4)
    weight = model.quant(model.random(6, 1, 3, 3), np.full((6, 1, 1, 1), 0.5), 4, narrow=1)
    bias = model.quant(model.random(6), 0.125, 8)
    window = {"kernel_shape": [3, 3], "pads": [1, 0, 1, 0], "strides": [1, 2]}
    x = model.node("Conv", x, weight, bias, group=3, **window)
    x = model.quant(model.node("Relu", x), 0.5, 4, signed=0)
    x = model.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])
    x = model.node("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1])
    x = model.node("Conv", model.quant(x, 0.25, 4), model.random(5, 6, 1, 1), model.random(5))
    x = model.node("GlobalAveragePool", model.quant(x, 0.25, 6))
    x = model.node("Reshape", model.quant(x, 0.25, 6), model.constant([0, 5], np.int64))
    return weighted(model, x, columns=5)


def pooled_inputs(model):
    x = model.node("MaxPool", model.quant("global_in", 0.25, 4), kernel_shape=[2, 2])
    x = model.node("Transpose", x, perm=[0, 2, 3, 1])
    return weighted(model, model.node("Flatten", x), columns=3 * 7 * 7)


def convolved(model):
    x = model.quant("global_in", 0.5, 4)
    x = model.node("Conv", x, model.quant(model.random(4, 3, 3), 0.25, 3), dilations=[2])
    x = model.quant(model.node("Add", x, model.random(1, 4, 1)), 1.0, 5)
    x = model.node("MaxPool", x, kernel_shape=[2], strides=[2])
    x = model.quant(model.node("AveragePool", x, kernel_shape=[3]), 1.0, 5)
    return weighted(model, model.node("Flatten", x), columns=8)


def attention(model):
    x = model.quant("global_in", 0.5, 4)
    y = model.node("MatMul", x, model.quant(model.node("Transpose", x, perm=[0, 2, 1]), 0.5, 4))
    return weighted(model, model.quant(y, 1.0, 6), columns=3)


CASES = {
    **{make.__name__: (make, (8,)) for make in VECTORS},
    **{make.__name__: (make, (3, 8, 8)) for make in (pooled, pooled_inputs)},
    **{make.__name__: (make, (3, 12)) for make in (convolved, attention)},
}
TIES = {"float_bias", "scaled", "scales_by_channel", "pooled", "functions"}
"""Cases with floats that are no multiples of a power of two, whose sums depend on their order."""
NO_CODES = {"float_bias", "shared", "pooled"}
"""Cases with weights or sums that are not rounded, so that they have no integers."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_graphs_equal_the_evaluator(name, tmp_path):
    make, shape = CASES[name]
    model = Model(*shape)
    make(model)
    mg, x, y = graph_and_rows(model, tmp_path)
    with torch.no_grad():
        ours = mg.model(x)
        assert torch.equal(ours[:1], mg.model(x[:1]))
    assert ours.shape == y.shape and y.unique().numel() > 4
    if name in TIES:
        torch.testing.assert_close(ours, y, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(ours, y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_CODES])
def test_integer_graphs_have_the_same_codes(name, tmp_path):
    make, shape = CASES[name]
    model = Model(*shape)
    make(model)
    mg, x, y = graph_and_rows(model, tmp_path)
    integer, info = lowered(mg, x)
    # The last norm of one case has float factors, and no reader that rounds its result.
    compared = info["operators"][: -1 if name == "scaled" else None]
    assert {row["name"]: row["different"] for row in compared if row["different"]} == {}
    torch.testing.assert_close(integer.model(x), y, rtol=1e-4, atol=1e-4)


THIRD = float(np.float32(0.3))


def finn(name):
    if name == "cnv":
        return cnv()
    return tfc(*{"tfc-w1a1": (1, 64), "tfc-w2a2": (2, 64), "lfc-w1a1": (1, 1024)}[name])


@pytest.mark.parametrize(
    "name", ["tfc-w1a1", "tfc-w2a2", "cnv", pytest.param("lfc-w1a1", marks=pytest.mark.long)]
)
def test_networks_of_finn_have_equal_integers(name, tmp_path):
    mg, x, y = graph_and_rows(finn(name), tmp_path, count=20, scale=0.5)
    with torch.no_grad():
        assert torch.equal(mg.model(x), y)
    integer, info = lowered(mg, x)
    assert sum(row["different"] for row in info["operators"]) == 0
    assert torch.equal(integer.model(x), y) and y.unique().numel() > 20
    kinds = {type(module).__name__ for module in integer.model.modules()}
    assert "IntegerThresholds" in kinds  # batch norms ahead of few codes


@pytest.mark.long
@QONNX_RUNS
@pytest.mark.parametrize("name", ["tfc-w1a1", "tfc-w2a2", "cnv", *sorted(set(CASES) - TIES)])
def test_graphs_equal_the_executor_of_qonnx(name, tmp_path):
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    model = Model(*CASES[name][1]) if name in CASES else finn(name)
    if name in CASES:
        CASES[name][0](model)
    path, x = model.save(tmp_path), rows(model)
    wrapped = ModelWrapper(str(path)).transform(infer_shapes())
    theirs = [execute_onnx(wrapped, {"global_in": row[None]})[model.last] for row in x]
    with torch.no_grad():
        ours = read_graph(path).model(torch.from_numpy(x))
    assert torch.equal(ours, torch.from_numpy(np.concatenate(theirs)))


def infer_shapes():
    from qonnx.transformation.infer_shapes import InferShapes

    return InferShapes()


def test_layers_have_the_names_and_formats_of_nodes(tmp_path):
    model = Model(8, domain="onnx.brevitas")
    x = model.quant("global_in", 0.25, 4, narrow=1)
    weight = model.quant(model.random(8, 6), 0.25, 3, narrow=1)
    x = model.node("MatMul", x, weight, name="/fc.1/MatMul")
    x = model.node("Relu", x, name="1")
    x = model.quant(x, 0.5, 2, signed=0, mode="half_even")
    x = model.node("MatMul", x, model.bipolar(model.random(6, 2), 0.3), name="")
    model.bipolar(x)
    layers = dict(read_module(model.save(tmp_path)).named_children())
    assert list(layers) == ["fc_1_MatMul", "node_1", "matmul_6"]
    first, _, last = layers.values()
    assert first.spec.data_in == ScaleInteger(4, scales=(0.25,))
    assert first.spec.weight == Integer(3, 2)
    assert last.spec.data_in == Integer(2, 1, is_signed=False)
    assert last.spec.weight == Binary(scaling_factor=True, scales=(THIRD,))
    assert last.spec.data_out == Binary()  # of the result, which no layer reads


def test_scales_in_succession_are_one_batch_norm(tmp_path):
    model = Model(8)
    scaled(model)
    layers = [type(layer).__name__ for layer in read_module(model.save(tmp_path)).children()]
    assert layers == ["BatchNorm1d", "QuantLinear", "BatchNorm1d"]
    shared = model.nodes[-2].output[0]
    layers = read_module(model.save(tmp_path, model.last, shared)).children()
    assert len(list(layers)) == 4  # the sum is an output, too


def rounded(**settings):
    return Rounding(torch.tensor(0.5), bits=4, is_narrow=False, **settings)


@pytest.mark.parametrize(
    "rounding, number_format",
    [
        (rounded(), Integer(4, 1)),
        (rounded(is_signed=False, mode="FLOOR"), Integer(4, 1, False, True)),
        (Rounding(torch.tensor([0.3]), 4), ScaleInteger(4, scales=(THIRD,))),
        (
            Rounding(torch.tensor(0.3), 3, True, False),
            ScaleInteger(3, scales=(THIRD,), is_symmetric=False),
        ),
        (Rounding(torch.tensor(1.0), 1), Binary()),
    ],
    ids=str,
)
def test_formats_round_activations_like_their_nodes(rounding, number_format):
    found = rounding.data_format()
    assert found == number_format
    x = torch.cat([torch.arange(-200, 200) / 16, torch.randn(500)])
    assert torch.equal(found.round(x), rounding.constant(x).values + 0.0)


REFUSED = {
    "zero points": ({"zero_point": 1.0}, "zero points are not supported"),
    "roundings": ({"mode": "HALF_UP"}, "rounding_mode HALF_UP is not supported"),
    "roundings of activations": ({"mode": "CEIL"}, "rounded by ROUND or FLOOR, it has CEIL"),
    "bits": ({"bits": 2.5}, r"one whole bit width, got \[2.5\]"),
    "wide": ({"bits": 40}, "expected a bit width of 1 to 32, got 40"),
    "scales": ({"scale": [[0.5, 0.25] * 4]}, "activations need one scale"),
    "no scale": ({"scale": 0.0}, "expected scales above 0"),
    "narrow": ({"signed": 0, "narrow": 1}, "no format has the integers 0 to 14 times 0.5"),
    "floor": ({"mode": "FLOOR", "scale": 0.3}, "FLOOR needs narrow=0 and a scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_roundings_without_a_format_are_refused_by_node(name, tmp_path):
    settings, reason = REFUSED[name]
    model = Model(8)
    weighted(model, model.quant("global_in", **{"scale": 0.5, "bits": 4, **settings}))
    with pytest.raises(ConfigError, match=rf"node '/?[\w/]*' \(Quant\): .*{reason}"):
        read_graph(model.save(tmp_path))


KINDS = ("Relu", "Tanh")


def refused_nodes():
    window, ints = {"kernel_shape": [3, 3]}, np.int64
    return {
        "operators": (lambda m, x: m.node("Erf", x), r"\(Erf\): the operator is not supported"),
        "domains": (
            lambda m, x: m.node("MultiThreshold", x, m.random(3, 1), domain=m.domain),
            r"\(MultiThreshold\): operators of the domain",
        ),
        "pads": (
            lambda m, x: m.node("Conv", x, m.random(2, 3, 3, 3), pads=[0, 0, 1, 1], **window),
            r"\(Conv\): expected the same pads",
        ),
        "auto_pad": (
            lambda m, x: m.node("MaxPool", x, auto_pad="SAME_UPPER", **window),
            "auto_pad is not supported",
        ),
        "batches": (
            lambda m, x: m.node("Reshape", x, m.constant([3, 64], ints)),
            "joins or splits rows",
        ),
        "orders": (lambda m, x: m.node("Transpose", x, perm=[1, 0, 2, 3]), "moves the batch"),
        "axes": (lambda m, x: m.node("Concat", x, x, axis=0), "it joins batches"),
        "constants": (lambda m, x: m.node("Mul", x, m.random(8)), "or one per channel of"),
        "quotients": (lambda m, x: m.node("Div", m.random(1), x), "a division by a constant"),
        "clips": (lambda m, x: m.node("Clip", x), "expected both min and max"),
        "factors": (
            lambda m, x: m.node("Gemm", m.node("Flatten", x), m.random(192, 4), alpha=2.0),
            "expected alpha=1.0, got 2.0",
        ),
        "dimensions": (
            lambda m, x: m.node("AveragePool", m.node("Flatten", x), kernel_shape=[2]),
            "expected an input of 3 or 4 dimensions, got 2",
        ),
        "scales": (
            lambda m, x: m.node(
                "Add", *(m.quant(m.node(kind, x), 0.3, 4 + (kind == "Relu")) for kind in KINDS)
            ),
            "different scales that are not powers of two",
        ),
        "weights": (
            lambda m, x: m.node(
                "MatMul",
                m.node("Flatten", x),
                m.quant(m.random(192, 2), np.full((192, 1), 0.5) + np.eye(192, 1), 4),
            ),
            "one per output channel",
        ),
    }


@pytest.mark.parametrize("name", refused_nodes())
def test_unsupported_nodes_are_refused_by_name_and_operator(name, tmp_path):
    make, reason = refused_nodes()[name]
    model = Model(3, 8, 8)
    make(model, model.quant("global_in", 0.5, 4))
    with pytest.raises(ConfigError, match=rf"model.onnx': node '/.*{reason}"):
        read_graph(model.save(tmp_path))


def test_roundings_without_a_layer_are_refused(tmp_path):
    model = Model(8)
    model.quant(model.quant("global_in", 0.5, 4), 1.0, 3)
    with pytest.raises(ConfigError, match="'global_in' is rounded here as well as elsewhere"):
        read_graph(model.save(tmp_path))
    model = Model(8)
    x = model.quant("global_in", 0.5, 4)
    with pytest.raises(ConfigError, match="output of the model: 'global_in' is rounded"):
        read_graph(model.save(tmp_path, x))


@pytest.mark.parametrize("kind", ["Identity", "Flatten"])
def test_layers_that_others_read_are_not_rounded(kind, tmp_path):
    model = Model(8)
    x = weighted(model, model.quant("global_in", 0.5, 4))
    other = model.node("Relu", x)
    rounded_alias = model.quant(model.node(kind, x), 1.0, 3)
    with pytest.raises(ConfigError, match="output of the model: '.*' is rounded here as well"):
        read_graph(model.save(tmp_path, other, rounded_alias))


def test_files_of_something_else_are_refused(tmp_path):
    model = Model(8)
    model.node("Relu", "global_in")
    with pytest.raises(ConfigError, match="has no Quant nodes"):
        read_graph(model.save(tmp_path))
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(CheckpointError, match="is not a readable ONNX file"):
        read_graph(tmp_path / "text.onnx")
    with pytest.raises(CheckpointError, match=r"missing.onnx' does not exist"):
        read_graph(tmp_path / "missing.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(CheckpointError, match=r"empty.onnx' is empty"):
        read_graph(tmp_path / "empty.onnx")
    model = Model(8)
    weighted(model, model.quant("global_in", 0.5, 4), columns=7)
    with pytest.raises(CheckpointError, match=r"node '/MatMul_\d+' \(MatMul\) is broken: mat1"):
        read_graph(model.save(tmp_path))
    model = Model(8)
    model.quant("nowhere", 0.5, 4)
    with pytest.raises(CheckpointError, match="no node computes 'nowhere'"):
        read_graph(model.save(tmp_path))


def test_covering_formats_hold_all_codes():
    given = [Integer(4, 2), Integer(8, 5, is_signed=False)]
    cover = covering_format(given)
    for one in given:
        low, high = one.code_range
        values = torch.arange(low, high + 1) * 2.0**-one.frac_width
        assert torch.equal(cover.round(values), values)
    assert covering_format([Integer(4, 2), Binary()]) is None
    assert covering_format([Integer(32, 0), Integer(4, 3)]) is None


def test_constants_move_with_their_scales():
    rounding = Rounding(torch.tensor([[0.5], [0.25]]), 4)
    constant = rounding.constant(torch.randn(2, 3)).map(lambda x: x.T)
    assert torch.equal(constant.scale, torch.tensor([[0.5, 0.25]]).expand(3, 2))
    with pytest.raises(ConfigError, match="one per output channel"):
        constant.number_format()
    assert Constant(torch.randn(2)).number_format() is None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.sampled(1)
def test_own_files_give_the_same_results(name, tmp_path):
    mg, x = quantized(*FORMATS[name][:3])
    with torch.no_grad():
        back = read_graph(qonnx.write(mg, tmp_path / "file.onnx")["path"]).model(x)
        torch.testing.assert_close(back, mg.model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_own_files_give_the_same_integers(name, tmp_path):
    mg = quantized_graph(name, "8.auto")
    back = read_graph(target("qonnx").export(mg, tmp_path / "qonnx").path)
    x = {"pixel_values": test_rows(name, 40)["pixel_values"]}
    found = []
    for graph in (mg, back):
        ready, _ = passes.add_common_metadata_analysis_pass(graph)
        integer, _ = passes.lower_to_integer_transform_pass(ready, {"batches": [x]})
        codes = golden_values(integer, x)
        found.append([codes[key] for key in codes])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours.flatten(), theirs.flatten())
