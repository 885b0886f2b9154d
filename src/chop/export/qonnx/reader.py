"""Reader of QONNX files: a module with the file's layers, in the number formats of its nodes.

A rounding of an activation becomes the input format of the layers that read it. It becomes the
output format of the layer that computes it if the readers have no such format, as the output of the
model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.files.reading import require_file
from chop.base.installed import require
from chop.errors import CheckpointError, ConfigError, first_line
from chop.export.onnx.operators import BIPOLAR, QONNX, QUANT
from chop.export.qonnx.build import RANGES, SHAPES, Builder, Node
from chop.export.qonnx.formats import Constant, Rounding
from chop.export.qonnx.operators import CONSTANT_MOVES, OPERATORS
from chop.ir.graph import MaseGraph

SUFFIX = ".onnx"
DOMAINS = (QONNX, "onnx.brevitas", "finn.custom_op.general")
"""Domains of the nodes Quant and BipolarQuant."""
ROUNDED = (QUANT, BIPOLAR)
PLAIN = ("", "ai.onnx")


def is_qonnx(name: str | Path) -> bool:
    """Returns whether a model name is that of an ONNX file."""
    return str(name).endswith(SUFFIX)


def read_graph(path: str | Path) -> MaseGraph:
    """Reads a QONNX file as a quantized graph, for any number of rows.

    Args:
        path: see `read_module`.
    Raises:
        ConfigError: see `read_module`.
        CheckpointError: see `read_module`.
    """
    model = read_module(path)
    return MaseGraph(model, dummy_in=random_inputs(model, 2))


def read_module(path: str | Path) -> fx.GraphModule:
    """Reads a QONNX file as a module in evaluation mode, with a layer per node.

    Layers have the names of their nodes, and quantized operators where nodes round their inputs or
    weights. The first axis of each input is the batch, of any size.

    Args:
        path: file with nodes Quant or BipolarQuant, such as those of brevitas, QKeras or
            `chop export --to qonnx`.
    Raises:
        ConfigError: if chop has no layer for a node, or no format for its rounding; the message has
            its name and operator.
        CheckpointError: if the file is missing or broken.
    """
    require("reading QONNX", "onnx", extra="")
    proto = _load(Path(path))
    if not any(node.op_type in ROUNDED for node in proto.graph.node):
        raise ConfigError(
            f"'{path}' has no Quant nodes: expected a QONNX file, such as those of brevitas, or of "
            "chop export --to qonnx."
        )
    graph = proto.graph
    opsets = {each.domain: each.version for each in proto.opset_import}
    builder = _start(graph, path)
    for number, given in enumerate(graph.node):
        node = Node.of(given, number)
        try:
            _read_node(builder, node, given, opsets)
        except ConfigError as error:
            raise ConfigError(f"'{path}': node {node.title}: {error}.") from None
        except CheckpointError as error:
            raise CheckpointError(f"'{path}': {error}") from None
        except Exception as error:  # torch has errors of many classes for shapes that do not fit
            reason = first_line(error)
            raise CheckpointError(f"'{path}': node {node.title} is broken: {reason}") from None
    if not graph.output:
        raise CheckpointError(f"'{path}' has no outputs: the file is broken.")
    try:
        outputs = [builder.settle(builder.value(each.name)).node for each in graph.output]
    except ConfigError as error:
        raise ConfigError(f"'{path}': output of the model: {error}.") from None
    except CheckpointError as error:
        raise CheckpointError(f"'{path}': output of the model: {error}") from None
    return builder.finish(outputs)


def is_read(model: nn.Module) -> bool:
    """Returns whether a module comes from `read_module`, so that it has its own number formats."""
    return isinstance(model, fx.GraphModule) and SHAPES in model.meta


def random_inputs(model: fx.GraphModule, rows: int, seed: int = 0) -> dict[str, Tensor]:
    """Returns random inputs by name, uniform over the range of their first Quant node.

    Inputs that other nodes read are uniform from -1 to 1.

    Args:
        model: module from `read_module`.
        rows: batch size.
        seed: seed of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for name, shape in model.meta[SHAPES].items():
        low, high = model.meta[RANGES].get(name, (-1.0, 1.0))
        uniform = torch.rand(rows, *shape[1:], generator=generator)
        inputs[name] = low + (high - low) * uniform
    return inputs


def _load(path: Path) -> Any:
    import onnx

    if not path.exists() or (path.is_file() and not path.stat().st_size):
        state = "is empty" if path.exists() else "does not exist"
        raise CheckpointError(f"model file '{path}' {state}: expected a QONNX file.")
    try:
        require_file(path, "weights")
        return onnx.load(str(path))
    except ConfigError:
        raise
    except Exception as error:  # the errors of protobuf and of external data have no common class
        raise CheckpointError(
            f"'{path}' is not a readable ONNX file: {first_line(error)}"
        ) from None


def _start(graph: Any, path: str | Path) -> Builder:
    """Returns a builder with the constants and inputs of a file."""
    from onnx import numpy_helper

    readers = Counter(name for node in graph.node for name in node.input)
    builder = Builder(readers + Counter(each.name for each in graph.output))
    for each in graph.initializer:
        if each.data_type == each.STRING:
            continue  # no supported operator reads text
        builder.constants[each.name] = _constant(numpy_helper.to_array(each))
    for each in graph.input:
        if each.name in builder.constants:
            continue  # files of IR versions below 4 list initializers as well
        sizes = [size.dim_value for size in each.type.tensor_type.shape.dim]
        if not sizes or min(sizes[1:], default=1) < 1:
            raise ConfigError(
                f"'{path}': input '{each.name}' has no fixed sizes. Only the first one, the batch, "
                "may be free."
            )
        try:
            builder.add_input(each.name, (max(sizes[0], 1), *sizes[1:]))
        except ConfigError as error:
            raise ConfigError(f"'{path}': input '{each.name}': {error}.") from None
        except RuntimeError as error:  # too large for the memory
            raise CheckpointError(
                f"'{path}': input '{each.name}' has the sizes {sizes}: {first_line(error)}"
            ) from None
    return builder


def _constant(array: Any) -> Constant:
    # Types that only ONNX has, such as bfloat16 and int4, have the kind V: float32 holds them.
    values = torch.from_numpy(array.astype("float32") if array.dtype.kind == "V" else array.copy())
    return Constant(values.float() if values.is_floating_point() else values)


def _read_node(builder: Builder, node: Node, given: Any, opsets: Mapping[str, int]) -> None:
    """Adds a node to the module, or its result to the constants."""
    if not node.output or node.output in builder.constants or node.output in builder.values:
        raise CheckpointError(f"node {node.title} has no output of its own: the file is broken.")
    is_rounded = node.operator in ROUNDED and given.domain in DOMAINS
    is_constant = all(name in builder.constants for name in node.inputs if name)
    if is_rounded:
        rounding = _rounding(builder, node)
        if node.inputs[0] in builder.constants:
            x = builder.constants[node.inputs[0]].values
            builder.constants[node.output] = rounding.constant(x)
        else:
            value = builder.value(node.inputs[0])
            if rounding.scale.dim() > value.example.dim():
                raise ConfigError("its scale has more dimensions than the activation")
            reads = builder.readers[node.inputs[0]]
            builder.values[node.output] = builder.round(value, rounding.data_format(), reads)
    elif given.domain not in PLAIN:
        raise ConfigError(f"operators of the domain '{given.domain}' are not supported")
    elif is_constant:
        builder.constants[node.output] = _folded(builder, node, given, opsets)
    elif node.operator in OPERATORS:
        builder.values[node.output] = OPERATORS[node.operator](builder, node)
    else:
        raise ConfigError(f"the operator is not supported; expected {', '.join(sorted(OPERATORS))}")


def _folded(builder: Builder, node: Node, given: Any, opsets: Mapping[str, int]) -> Constant:
    """Computes a node of constants; moves scales of rounded ones along with their values."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.inputs if name]
    ends = [
        [helper.make_empty_tensor_value_info(each) for each in part]
        for part in (names, [node.output])
    ]
    graph = helper.make_graph([given], "constants", *ends)  # a node alone has the latest opset
    evaluator = ReferenceEvaluator(graph, opsets=dict(opsets))
    constants = [builder.constants[name] for name in names]
    others = [each.values for each in constants[1:]]

    def run(first: Tensor) -> Tensor:
        feeds = [first, *others] if constants else []
        named = {name: x.numpy() for name, x in zip(names, feeds, strict=True)}
        return torch.from_numpy(evaluator.run(None, named)[0].copy())

    if not constants:
        return _constant(run(torch.empty(0)).numpy())
    if node.operator in CONSTANT_MOVES:
        return constants[0].map(run)
    return Constant(run(constants[0].values))


def _rounding(builder: Builder, node: Node) -> Rounding:
    """Returns the rounding of a Quant or BipolarQuant node."""
    numbers = [builder.constant(name) for name in node.inputs[1:]]
    if node.operator == BIPOLAR:
        return Rounding(numbers[0].values, is_bipolar=True)
    scale, zero_point, bits = (each.values for each in numbers)
    if bool(zero_point.any()):
        raise ConfigError("zero points are not supported")
    if bits.numel() != 1 or bits.item() != int(bits.item()):
        raise ConfigError(f"expected one whole bit width, got {bits.flatten().tolist()}")
    settings: Mapping[str, Any] = node.attributes
    mode = settings.get("rounding_mode", b"ROUND")
    signed, narrow = (bool(settings.get(name, 1)) for name in ("signed", "narrow"))
    return Rounding(scale, int(bits.item()), signed, narrow, mode.decode().upper())
