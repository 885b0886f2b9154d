"""Rotation of a decoder: activations are rotated and weights compensate, keeping the function.

Products are computed in float64 and rounded once to the dtype of a weight.

Source: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456, section 4; R1 and R2 of SpinQuant, Liu et
al. 2024, arXiv:2405.16406, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError, GraphError
from chop.ir.graph import MaseGraph
from chop.ir.ownership import Ownership
from chop.kernels.hadamard import hadamard_transform, largest_block
from chop.nn.lora import refuse_adapters
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import why_computed
from chop.private.modules import own_parameters
from chop.quantization.folding.folding import why_hooked
from chop.quantization.rotation.online import insert_rotations, is_rotated
from chop.quantization.rotation.stream import (
    WHERE,
    Stream,
    find_stream,
    is_linear,
    table_parameter,
)
from chop.quantization.rotation.values import Values, find_values
from chop.quantization.rounding.experts import has_experts


@dataclass(frozen=True)
class Rotation:
    """Orthogonal matrix Q of random signs followed by a Hadamard matrix per block of channels.

    Attributes:
        signs: (channels,), +-1, float64.
        block: number of channels per Hadamard matrix.
    """

    signs: Tensor
    block: int

    @classmethod
    def of(cls, channels: int, most: int | None, seed: int | None) -> Rotation:
        """Creates a rotation with the largest known block size of at most `most` channels.

        Args:
            channels: number of channels.
            most: maximum block size; None for all channels.
            seed: seed of the signs; None for all +1.
        """
        signs = torch.ones(channels, dtype=torch.float64)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            signs -= 2 * torch.randint(0, 2, (channels,), generator=generator)
        return cls(signs, largest_block(channels, most))

    def rows(self, x: Tensor) -> Tensor:
        """Returns `x Q` for x (..., k * channels); each group of channels is rotated separately."""
        groups = x.unflatten(-1, (-1, len(self.signs))) * self.signs.to(x.device)
        return hadamard_transform(groups, self.block).flatten(-2)


@dataclass(frozen=True)
class RotationReport:
    """Report of a rotation.

    Attributes:
        residual: paths of the linear layers that read or write the rotated residual stream.
        values: the reader's path by the path of the layer that computes the values; blocks are
            heads.
        online: block size by path of a layer whose input is rotated at run time.
        untied: paths of output layers that no longer share the embedding's weight.
        skipped: reason by path of a layer whose input is not rotated.
    """

    residual: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    online: dict[str, int] = field(default_factory=dict)
    untied: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


@torch.no_grad()
def rotate(mg: MaseGraph, most: int | None, seed: int, online: bool) -> RotationReport:
    """Rotates the residual stream, the values of attentions, and inputs of other layers.

    Args:
        mg: graph to change.
        most: maximum block size; None for the largest available Hadamard matrix.
        seed: seed of the signs of merged rotations.
        online: rotates other inputs at run time, if no weight can absorb the rotation.

    Raises:
        GraphError: if a layer other than a linear one reads the stream, or a layer cannot be
            changed.
    """
    refuse_adapters(mg.model, WHERE)
    stream = find_stream(mg)
    pairs = {writer: find_values(mg, writer) for writer in stream.writers}
    untied = _check(mg, stream, pairs)
    _rotate_stream(mg, stream, Rotation.of(stream.width, most, seed))
    members = {*stream.writers, *stream.readers}
    report = RotationReport(
        [str(node.target) for node in mg.nodes if node in members], untied=untied
    )
    blocks: dict[fx.Node, int] = {}
    for writer, pair in pairs.items():
        if isinstance(pair, Values):
            _rotate_values(mg, pair, Rotation.of(pair.head_size, most, seed + 1))
            report.values[str(pair.maker.target)] = str(writer.target)
        elif online:
            blocks |= _rotate_inputs(mg, writer, most, report)
        else:
            report.skipped[str(writer.target)] = f"{pair}, and online rotation is off"
    insert_rotations(mg, blocks)
    return report


@torch.no_grad()
def rotate_online(mg: MaseGraph, most: int | None) -> RotationReport:
    """Rotates the inputs of all linear layers at run time, for any architecture.

    Layers that cannot be changed or are tied to an embedding are skipped.

    Args:
        mg: graph to change.
        most: maximum block size; None for the largest available Hadamard matrix.
    """
    refuse_adapters(mg.model, WHERE)
    owned, report, blocks = Ownership(mg), RotationReport(), dict[fx.Node, int]()
    for node in [node for node in mg.nodes if is_linear(mg, node)]:
        reason = _why_unchangeable(mg, node) or owned.why_shared(node)
        if reason is None:
            blocks |= _rotate_inputs(mg, node, most, report)
        else:
            report.skipped[str(node.target if node.op == "call_module" else node.name)] = reason
    for node in filter(lambda node: has_experts(mg, node), mg.nodes):
        report.skipped[str(node.target)] = "it has several experts"
    insert_rotations(mg, blocks)
    return report


def _rotate_inputs(
    mg: MaseGraph, layer: fx.Node, most: int | None, report: RotationReport
) -> dict[fx.Node, int]:
    """Rotates a weight for inputs that are rotated at run time. Returns the block size by layer."""
    path, weight = str(layer.target), _weight(mg, layer)
    block = largest_block(weight.shape[1], most)
    if is_rotated(mg, layer):
        report.skipped[path] = "its input is already rotated"
        return {}
    if block == 1:
        text = f"no Hadamard matrix has an order that divides its {weight.shape[1]} inputs"
        report.skipped[path] = text
        return {}
    report.online[path] = block
    _store(mg, layer, "weight", hadamard_transform(weight, block))
    return {layer: block}


def _rotate_stream(mg: MaseGraph, stream: Stream, rotation: Rotation) -> None:
    """Rotates the stream, x to x Q: E Q, Q^T W of writers, W diag(g) Q of readers."""
    for table in {table_parameter(mg, node): None for node in stream.tables}:
        module, name = table
        _put(module, name, rotation.rows(_double(own_parameters(module)[name])))
    gains = {reader: gain.values(mg) for reader, gain in stream.readers.items() if gain}
    for reader in stream.readers:
        weight = _weight(mg, reader)
        weight = weight * gains[reader] if reader in gains else weight
        _store(mg, reader, "weight", rotation.rows(weight))
    for gain in {gain.path: gain for gain in stream.readers.values() if gain}.values():
        gain.drop(mg)
    for writer in stream.writers:
        _store(mg, writer, "weight", rotation.rows(_weight(mg, writer).T).T)
        bias = _bias(mg, writer)
        if bias is not None:
            _store(mg, writer, "bias", rotation.rows(bias))


def _rotate_values(mg: MaseGraph, values: Values, rotation: Rotation) -> None:
    """Rotates values, v to v Q in each head, and the next layer's weight, W Q."""
    _store(mg, values.maker, "weight", rotation.rows(_weight(mg, values.maker).T).T)
    bias = _bias(mg, values.maker)
    if bias is not None:
        _store(mg, values.maker, "bias", rotation.rows(bias))
    _store(mg, values.reader, "weight", rotation.rows(_weight(mg, values.reader)))


# --- what may be changed


def _check(mg: MaseGraph, stream: Stream, pairs: dict[fx.Node, Values | str]) -> list[str]:
    """Checks that layers can be changed. Returns the paths of those tied to the embedding."""
    owned = Ownership(mg)
    tables = [table_parameter(mg, node) for node in stream.tables]
    shared = {id(own_parameters(module)[name]) for module, name in tables}
    makers = [pair.maker for pair in pairs.values() if isinstance(pair, Values)]
    untied = []
    for node in dict.fromkeys([*stream.readers, *stream.writers, *makers]):
        module = mg.get_module(node)
        is_tied = module is not None and id(own_parameters(module).get("weight")) in shared
        reason = _why_unchangeable(mg, node)
        if reason is None and not is_tied:
            reason = owned.why_shared(node)
        if reason is None and is_tied and node in stream.writers:
            reason = "shares its weight with the embedding and writes the stream"
        if reason is not None:
            raise GraphError(f"{WHERE}: '{node.target}' cannot be rotated: it {reason}.")
        untied += [str(node.target)] if is_tied else []
    return untied


def _why_unchangeable(mg: MaseGraph, node: fx.Node) -> str | None:
    module: Any = mg.get_module(node)
    if module is None:
        return "is a function call, not a module"
    if isinstance(module, QuantizedOperator) and not module.spec.is_float:
        return "is already quantized; rotate before quantizing"
    if isinstance(module, QuantizedOperator) and module.is_pruned:
        return "is pruned, and a rotation would fill the zeros; rotate before pruning"
    if why_computed(module) is not None:
        return f"has a weight that is computed by {why_computed(module)}"
    return "has forward hooks" if why_hooked(module) is not None else None


def _weight(mg: MaseGraph, node: fx.Node) -> Tensor:
    module: Any = mg.get_module(node)
    return _double(module.weight)


def _bias(mg: MaseGraph, node: fx.Node) -> Tensor | None:
    module: Any = mg.get_module(node)
    return None if module.bias is None else _double(module.bias)


def _double(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.detach().double()


def _store(mg: MaseGraph, node: fx.Node, name: str, x: Tensor) -> None:
    module = mg.get_module(node)
    assert module is not None
    _put(module, name, x)


def _put(module: nn.Module, name: str, x: Tensor) -> None:
    """Replaces a parameter. A layer that shared it keeps the old one."""
    old = own_parameters(module)[name]
    assert old is not None
    if not x.isfinite().all():
        raise ConfigError(f"{WHERE}: a {type(module).__name__} has a {name} that is not finite.")
    made = x.to(old.dtype).contiguous()
    own_parameters(module)[name] = nn.Parameter(made, old.requires_grad)
