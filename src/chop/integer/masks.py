"""Attention masks: a proof by probing that a graph masks exactly the keys that its input masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from chop.base.reach import reached
from chop.errors import ConfigError
from chop.integer.folding import Folded
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphRunner
from chop.nn.quantized import QuantScaledDotProductAttention

HIDDEN = -1e4
"""Largest additive mask value that masks a key: its weight is zero in float32."""
PROBED_KEYS = 32
RANDOM_PROBES = 8


@dataclass(frozen=True)
class ProvenMask:
    """Dependence of a mask on inputs.

    Attributes:
        source: the input, (B, K), whose zeros mask keys; None if it masks none.
        is_causal: keys after a query are masked too.
    """

    source: fx.Node | None
    is_causal: bool


def mask_argument(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """Returns the mask argument of an attention; None for other nodes or without a mask."""
    if mg.operator(node).twin is not QuantScaledDotProductAttention:
        return None
    position = 3
    given = node.args[position] if len(node.args) > position else node.kwargs.get("attn_mask")
    return given if isinstance(given, fx.Node) else None


def demanded_nodes(mg: MaseGraph) -> set[fx.Node]:
    """Returns the nodes that outputs depend on other than through masks."""
    demanded: set[fx.Node] = set()
    for node in reversed(mg.nodes):
        if node.op == "output" or node in demanded:
            mask = mask_argument(mg, node)
            demanded.update({node, *(given for given in node.all_input_nodes if given is not mask)})
    return demanded


def proven_mask(mg: MaseGraph, node: fx.Node, folded: Folded) -> ProvenMask:
    """Proves which keys a mask hides: those with input zero, those after each query, or both.

    The nodes between the input and the mask are evaluated on 0/1 inputs that hide one key, all but
    one, and random keys. The proof holds for no other input values. Queries with all keys masked
    are not compared, because models differ in their treatment.

    Args:
        mg: the graph.
        node: the mask, either boolean with True to keep a key, or added to scores.
        folded: values of the graph.
    Raises:
        ConfigError: if it is another kind of mask.
    """
    sources = _list_inputs(node, folded)
    if not sources:
        visible = _visible_keys(node, folded.values[node])
        return ProvenMask(None, _is_causal(node, visible))
    (source, *others) = sources
    example = folded.values[source]
    if others or not isinstance(example, Tensor) or example.dim() != 2 or folded.is_float(source):
        names = " and ".join(str(each.target) for each in sources)
        raise ConfigError(
            f"mask '{node.name}' depends on {names}, expected one input (batch, keys)"
        )
    is_causal = _is_causal(node, _evaluated(mg, node, source, torch.ones_like(example), folded))
    for probe in _probes(example):
        actual = _evaluated(mg, node, source, probe, folded)
        expected = probe.bool()[:, None, None, :].expand(-1, 1, actual.size(-2), -1)
        expected = _causal(expected) if is_causal else expected
        sees_any = expected.any(-1, keepdim=True)
        if actual.size(-1) != probe.size(1) or bool(((actual != expected) & sees_any).any()):
            raise ConfigError(
                f"mask '{node.name}' has to hide exactly the keys k with {source.target}[k] = 0"
            )
    return ProvenMask(source, is_causal)


def _list_inputs(node: fx.Node, folded: Folded) -> list[fx.Node]:
    """Returns the graph inputs whose values a node depends on, in graph order."""
    followed = _followed(node, folded)
    return [step for step in node.graph.nodes if step.op == "placeholder" and step in followed]


def _followed(node: fx.Node, folded: Folded) -> set[fx.Node]:
    """Returns the input-dependent nodes that a value depends on, including its own."""

    def changing(nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return [step for step in nodes if step not in folded.static]

    return {*reached(changing([node]), lambda step: changing(step.all_input_nodes))}


@torch.no_grad()
def _evaluated(
    mg: MaseGraph, node: fx.Node, source: fx.Node, probe: Tensor, folded: Folded
) -> Tensor:
    """Evaluates a mask for a value of an input: boolean (B or 1, 1, Q, K), True to keep a key."""
    run = GraphRunner(mg.model)
    run.env = {**folded.values, source: probe}
    needed = _followed(node, folded) - {source}
    for step in mg.nodes:
        if step in needed:
            run.env[step] = run.run_node(step)
    return _visible_keys(node, run.env[node])


def _visible_keys(node: fx.Node, mask: Tensor) -> Tensor:
    """Normalizes a mask to boolean (B or 1, 1, Q, K), True to keep a key.

    Raises:
        ConfigError: if some scores are changed without being masked, or heads have different masks.
    """
    if mask.dtype != torch.bool:
        is_zero = mask == 0
        if bool((~is_zero & (mask > HIDDEN)).any()):
            raise ConfigError(f"mask '{node.name}': expected values 0 or at most {HIDDEN:g}")
        mask = is_zero
    mask = mask.view(*[1] * (4 - mask.dim()), *mask.shape)
    if bool((mask != mask[:, :1]).any()):
        raise ConfigError(f"mask '{node.name}': expected the same mask for all heads")
    return mask[:, :1]


def _is_causal(node: fx.Node, visible: Tensor) -> bool:
    """Returns whether a mask is causal if the input masks nothing, False if it masks no key."""
    if bool(visible.all()):
        return False
    if torch.equal(visible, _causal(torch.ones_like(visible))):
        return True
    raise ConfigError(
        f"mask '{node.name}': expected a causal mask, or one that hides no key by itself"
    )


def _causal(visible: Tensor) -> Tensor:
    return visible & torch.ones_like(visible).tril()


def _probes(example: Tensor) -> Iterator[Tensor]:
    """Yields 0/1 tensors with the example's shape and dtype."""
    keys = example.size(1)
    for key in range(0, keys, max(1, keys // PROBED_KEYS)):
        one = torch.zeros_like(example)
        one[:, key] = 1
        yield from (one, 1 - one if example.dtype != torch.bool else ~one)
    generator = torch.Generator().manual_seed(0)
    for _ in range(RANDOM_PROBES):
        yield torch.randint(2, example.shape, generator=generator).to(example.dtype)
