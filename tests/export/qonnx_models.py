"""QONNX files made by hand, and their results by onnx's reference evaluator."""

from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

DOMAIN = "qonnx.custom_op.general"
ROUNDINGS = {"ROUND": np.round, "FLOOR": np.floor, "CEIL": np.ceil, "DOWN": np.trunc}


class Quant(OpRun):
    """Its definition in QONNX, in float32."""

    op_domain = DOMAIN

    def _run(self, x, scale, zero_point, bits, narrow=1, rounding_mode="ROUND", signed=1):
        bits = int(bits)
        high = 2.0 ** (bits - signed) - 1 - (narrow and not signed)
        low = -(2.0 ** (bits - 1)) + narrow if signed else 0.0
        codes = np.clip(x / scale + zero_point, low, high)
        if bits == 1 and signed:
            codes = np.where(x / scale >= 0, 1.0, -1.0)
        else:
            codes = ROUNDINGS[rounding_mode](codes)
        return (((codes - zero_point) * scale).astype(np.float32),)


class BipolarQuant(OpRun):
    """Its definition in QONNX."""

    op_domain = DOMAIN

    def _run(self, x, scale):
        return (np.where(x >= 0, scale, -scale).astype(np.float32),)


class Model:
    """File under construction: a method per node returns the name of its result."""

    def __init__(self, *shape, seed=0, domain=DOMAIN):
        self.generator, self.domain = np.random.default_rng(seed), domain
        self.nodes, self.initializers, self.count = [], [], 0
        self.shape, self.last = shape, "global_in"

    def constant(self, value, dtype=np.float32):
        self.count += 1
        name = f"c{self.count}"
        array = np.asarray(value, dtype)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape, scale=1.0):
        return self.constant(self.generator.standard_normal(shape) * scale)

    def node(self, operator, *inputs, domain="", name=None, **attributes):
        self.count += 1
        self.last = f"t{self.count}"
        name = f"/{operator}_{self.count}" if name is None else name
        self.nodes.append(
            helper.make_node(
                operator, [*inputs], [self.last], name=name, domain=domain, **attributes
            )
        )
        return self.last

    def quant(self, x, scale, bits, signed=1, narrow=0, mode="ROUND", zero_point=0.0):
        numbers = [self.constant(value) for value in (scale, zero_point, float(bits))]
        settings = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
        return self.node("Quant", x, *numbers, domain=self.domain, **settings)

    def bipolar(self, x, scale=1.0):
        return self.node("BipolarQuant", x, self.constant(scale), domain=self.domain)

    def norm(self, x, channels):
        """A batch norm with statistics as after training."""
        draw = self.generator
        weight, bias = draw.uniform(0.5, 1.5, channels), draw.standard_normal(channels) * 0.3
        weight[::5] *= -1
        mean, variance = draw.standard_normal(channels), draw.uniform(0.5, 4, channels)
        given = [self.constant(each) for each in (weight, bias, mean, variance)]
        return self.node("BatchNormalization", x, *given, epsilon=1e-5)

    def proto(self, *outputs):
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
            for names, shape in ((["global_in"], [1, *self.shape]), (outputs or [self.last], None))
        ]
        graph = helper.make_graph(self.nodes, "model", *ends, self.initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(self.domain, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def save(self, folder, *outputs):
        path = folder / "model.onnx"
        onnx.save(self.proto(*outputs), path)
        return path


def expected(path, x):
    """The results of each row alone, which is the batch size of the file."""
    evaluator = ReferenceEvaluator(onnx.load(path), new_ops=[Quant, BipolarQuant])
    return np.concatenate([evaluator.run(None, {"global_in": row[None]})[0] for row in x])


def tfc(bits, width=64, layers=3, shape=(1, 28, 28), seed=0):
    """FINN's TFC and LFC: linear layers with batch norms, weights and activations of few bits."""
    model = Model(*shape, seed=seed)
    x = model.node("Reshape", "global_in", model.constant([1, -1], np.int64))
    x = model.quant(x, 2.0**-7, 8, narrow=1)
    sizes = [int(np.prod(shape)), *[width] * layers, 10]
    for number, (columns, rows) in enumerate(pairwise(sizes)):
        weight = model.random(rows, columns)
        weight = model.bipolar(weight) if bits == 1 else model.quant(weight, 0.5, bits, narrow=1)
        x = model.node("MatMul", x, model.node("Transpose", weight, perm=[1, 0]))
        if number < layers:
            x = model.norm(x, rows)
            x = model.bipolar(x) if bits == 1 else model.quant(x, 1.0, bits, narrow=1)
    model.node("Mul", x, model.constant(0.125))
    return model


def cnv(channels=(4, 6), bits=1):
    """FINN's CNV, with fewer channels: convolutions, pooling and a linear layer."""
    model = Model(3, 12, 12)
    x, before = model.quant("global_in", 2.0**-7, 8, narrow=1), 3
    for count in channels:
        weight = model.bipolar(model.random(count, before, 3, 3))
        x = model.norm(model.node("Conv", x, weight, kernel_shape=[3, 3]), count)
        x, before = model.bipolar(x), count
    x = model.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", x)
    weight = model.bipolar(model.random(before * 16, 10))
    model.node("MatMul", x, weight)
    return model
