"""AOTInductor target (`.pt2`): compiled packages that torch or C++ load without chop."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.files import atomic_file
from chop.base.files.temporary import scratch_folder
from chop.errors import ChopError, GraphError, VerificationError, first_line, shorten
from chop.export.graphs.axes import Axis, Conditions
from chop.export.graphs.flat import FlatGraph, named_tensors
from chop.export.onnx.export import examples_and_answers
from chop.export.target import Runner, Target
from chop.formats import NumberFormat, Quantizer, from_key
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.private.compile_api import compile_package, load_package, package_metadata
from chop.private.modules import own_parameters
from chop.quantization.compilation import round_in_steps, takes_steps
from chop.quantization.freezing import freeze_layers

log = logging.getLogger(__name__)

SUFFIX = ".pt2"
DIFFERENCE = 0.05
"""Allowed difference relative to an output's norm: compiled code may round ties differently."""
NAMED = ("inputs", "outputs")
UNCHECKED = (
    "%s: the graph was captured for %s. The package accepts other sizes too, but its outputs may "
    "be wrong for them."
)
ROUNDING = torch.ops.chop.fake_quantize.default
Package = Callable[..., list[Tensor]]


def write(mg: MaseGraph, path: Path, where: str) -> dict[str, Any]:
    """Compiles a graph ahead of time, verifies the package, and writes it.

    Args:
        mg: graph; it is not changed. The package runs on the CPU.
        path: path of the file, with the suffix `.pt2`.
        where: caller, for messages.
    Returns: `path`; names of `inputs` and `outputs` in the order of the package; `varying`, the
        dynamic axes of each input, because a package does not check the sizes of other axes;
        `unchecked`, the graph's guards on sizes that the package does not test; `compiled`, the
        loaded package, which takes tensors and returns a list of tensors.

    Raises:
        GraphError: if torch cannot export or compile the graph, or if a part needs chop, such as
            rounding of inputs to formats other than `integer`.
        VerificationError: if the package computes other results.
    """
    # torch's symbolic shapes are imported where something is traced.
    from chop.private.symbolic_shapes import forgetting_traces

    with forgetting_traces():
        return _write(mg, path, where)


def _write(mg: MaseGraph, path: Path, where: str) -> dict[str, Any]:
    answers = examples_and_answers(mg, dynamic=True)
    copy = mg.copy()
    copy.model.cpu()
    flat = FlatGraph(copy, answers[0][0], where)
    conditions = Conditions(mg.model.record.guards, answers[0][0])
    program = _program(flat, conditions, where)
    axes = _varying_axes(program, flat)
    unchecked = conditions.restricting(axes)
    if unchecked:
        log.warning(UNCHECKED, where, " and ".join(unchecked))
    path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
    names = {"inputs": ",".join(flat.inputs), "outputs": ",".join(flat.outputs)}
    with scratch_folder("pt2") as folder:
        made = folder / f"model{SUFFIX}"
        _converting_errors(where, lambda: compile_package(program, made, names))
        package: Package = _converting_errors(where, lambda: load_package(made))
        for example, answer in answers:
            tensors = flat.tensors(example)
            if _fits(tensors, flat, axes):
                outputs = _converting_errors(where, partial(_run, package, tensors.values()))
                _check(dict(zip(flat.outputs, outputs, strict=True)), flat.answers(answer), where)
        with atomic_file(path) as temporary:
            temporary.write_bytes(made.read_bytes())
    return {
        "path": path,
        "inputs": [*flat.inputs],
        "outputs": flat.outputs,
        "varying": {name: [a for one, a in axes if one == name] for name in flat.inputs},
        "unchecked": unchecked,
        "compiled": load_package(path),
    }


@torch.no_grad()
def _run(package: Package, tensors: Iterable[Tensor]) -> list[Tensor]:
    return package(*tensors)


def _fits(tensors: Mapping[str, Tensor], flat: FlatGraph, axes: Sequence[Axis]) -> bool:
    """Returns True if only dynamic axes differ from the sizes of the exported program."""
    return all(
        size == flat.inputs[name].shape[axis] or (name, axis) in axes
        for name, x in tensors.items()
        for axis, size in enumerate(x.shape)
    )


def _program(flat: FlatGraph, conditions: Conditions, where: str) -> Any:
    """Returns the exported program, with roundings in PyTorch operations."""
    auto, varying = torch.export.Dim.AUTO, conditions.varying()
    shapes = {"tensors": tuple(dict.fromkeys(varying[name], auto) for name in flat.inputs)}

    def exported() -> Any:
        with torch.no_grad():
            tensors = tuple(flat.inputs.values())
            return torch.export.export(flat.module, tensors, dynamic_shapes=shapes, strict=False)

    program = _converting_errors(where, exported)
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    calls = [node for graph in graphs for node in graph.nodes if _is_of_chop(node.target)]
    others = {_label(node) for node in calls if not _takes_steps(node)}
    if others:
        raise GraphError(
            f"{where}: a package runs without chop, but {', '.join(sorted(others))} needs it. "
            "Inputs may be rounded to integer, to nearest, and weights to any format. To compile "
            "without a package, use {'compile': True}."
        )
    return _converting_errors(where, lambda: program.run_decompositions({ROUNDING: round_in_steps}))


def _takes_steps(node: fx.Node) -> bool:
    return node.target is ROUNDING and takes_steps(from_key(str(node.args[1])))


def _label(node: fx.Node) -> str:
    """Describes a call of a chop operator, for messages."""
    if node.target is ROUNDING:
        return f"rounding to {from_key(str(node.args[1])).label}"
    return str(node.target)


def _is_of_chop(target: Any) -> bool:
    return getattr(target, "namespace", "") == "chop"


def _varying_axes(program: Any, flat: FlatGraph) -> list[Axis]:
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    placed = zip(flat.inputs, program.graph_signature.user_inputs, strict=True)
    return [
        (name, axis)
        for name, node in placed
        for axis, size in enumerate(values[node].shape)
        if not isinstance(size, int)
    ]


def _converting_errors(where: str, make: Callable[[], Any]) -> Any:
    """Returns the result of `make`, and converts torch's various exceptions to GraphError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own calls
            return make()
    except ChopError:
        raise
    except Exception as error:
        reason = shorten(first_line(error), 300)
        raise GraphError(
            f"{where}: torch cannot compile this graph ahead of time: {reason}; try "
            "{'compile': True}, or express the operator differently."
        ) from error


def _check(outputs: Mapping[str, Tensor], expected: Sequence[Tensor], where: str) -> None:
    for (name, given), right in zip(outputs.items(), expected, strict=True):
        share = _share_of_difference(given, right)
        if share > DIFFERENCE:
            raise VerificationError(
                f"{where}: the package differs from the graph in the output '{name}' by "
                f"{share:.0%}; no file was written. Try {{'compile': True}}."
            )


def _share_of_difference(given: Tensor, right: Tensor) -> float:
    """Returns the difference relative to the norm; infinite if shape, dtype or integers differ."""
    if given.shape != right.shape or given.dtype != right.dtype:
        return math.inf
    if not right.is_floating_point():
        return 0.0 if torch.equal(given, right) else math.inf
    same = (given == right) | (given.isnan() & right.isnan())
    difference = torch.where(same, 0.0, given.double() - right.double()).norm().item()
    exact = right.double().nan_to_num(0.0, 0.0, 0.0).norm().item()
    share = difference / exact if exact else (math.inf if difference else 0.0)
    return math.inf if math.isnan(share) else share


def write_target(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a package of a graph with its weights rounded once; the tokenizer is ignored."""
    frozen = mg.sharing_copy()
    frozen.model.eval()
    if any(isinstance(module, QuantizedOperator) for module in frozen.model.modules()):
        freeze_layers(frozen)
    return write(frozen, path, TARGET.name)


def refusals(mg: MaseGraph) -> dict[str, str]:
    """Returns the activation roundings that need chop, by module path; see `Target`."""
    reasons: dict[str, str] = {}
    for path, module in mg.model.named_modules():
        if isinstance(module, QuantizedOperator):
            labels = [f"{operand} to {x.label}" for operand, x in _needing_chop(module)]
            reasons |= {path: f"only chop can round its {', '.join(labels)}"} if labels else {}
    return reasons


def _needing_chop(module: QuantizedOperator) -> Iterator[tuple[str, Quantizer]]:
    parameters = own_parameters(module)
    stored = module.packed_shapes if isinstance(module, PackedOperator) else {}
    for operand, quantizer in module.spec.items():
        is_stored = operand in stored or parameters.get(operand) is not None
        is_absent = operand == "bias" and not is_stored
        if is_stored or is_absent or quantizer.is_identity:
            continue
        if not isinstance(quantizer, NumberFormat) or not takes_steps(quantizer):
            yield operand, quantizer


def read(path: Path) -> Runner:
    """Loads the package with torch."""
    package = load_package(path)
    names = {key: x.split(",") for key, x in package_metadata(path).items() if key in NAMED}

    @torch.no_grad()
    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        tensors = named_tensors(inputs)
        given = [tensors[name] for name in names["inputs"]]
        return dict(zip(names["outputs"], package(*given), strict=True))

    return answers


TARGET = Target(
    "pt2",
    "torch, C++ with libtorch",
    "weights in any format; inputs in integer",
    "torch",
    "",
    SUFFIX,
    write_target,
    read,
    refusals,
)
