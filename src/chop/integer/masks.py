"""Attention masks: a proof by probes that a graph hides the keys its input hides, and no more."""

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
"""Added to a score, this or less hides a key: its weight is zero in float32."""
PROBED_KEYS = 32
RANDOM_PROBES = 8


@dataclass(frozen=True)
class ProvenMask:
    """What a mask depends on.

    Attributes:
        source: the input, (B, K), whose zeros hide keys; None for none.
        is_causal: keys after a query are hidden too.
    """

    source: fx.Node | None
    is_causal: bool


def mask_argument(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """The mask that an attention reads; None for other nodes and without one."""
    if mg.operator(node).twin is not QuantScaledDotProductAttention:
        return None
    position = 3
    given = node.args[position] if len(node.args) > position else node.kwargs.get("attn_mask")
    return given if isinstance(given, fx.Node) else None


def demanded_nodes(mg: MaseGraph) -> set[fx.Node]:
    """The nodes whose results reach the outputs otherwise than as masks."""
    found: set[fx.Node] = set()
    for node in reversed(mg.nodes):
        if node.op == "output" or node in found:
            mask = mask_argument(mg, node)
            found.update({node, *(given for given in node.all_input_nodes if given is not mask)})
    return found


def proven_mask(mg: MaseGraph, node: fx.Node, folded: Folded) -> ProvenMask:
    """Proves what a mask hides: keys where an input is zero, keys after each query, or both.

    The nodes between the input and the mask are evaluated on inputs that hide one key, all but
    one, and random ones, all of 0 and 1: the proof holds for no other values. Queries that would
    see no key at all are left out: what models do with them differs.

    Args:
        mg: the graph.
        node: the mask: boolean, True keeps; or added to scores.
        folded: its values.
    Raises:
        ConfigError: it is another mask.
    """
    sources = _list_inputs(node, folded)
    if not sources:
        kept = _kept(node, folded.values[node])
        return ProvenMask(None, _is_causal(node, kept))
    (source, *others) = sources
    example = folded.values[source]
    if others or not isinstance(example, Tensor) or example.dim() != 2 or folded.is_float(source):
        names = " and ".join(str(found.target) for found in sources)
        raise ConfigError(f"mask '{node.name}' of {names}, expected one of an input (batch, keys)")
    is_causal = _is_causal(node, _evaluated(mg, node, source, torch.ones_like(example), folded))
    for probe in _probes(example):
        found = _evaluated(mg, node, source, probe, folded)
        expected = probe.bool()[:, None, None, :].expand(-1, 1, found.size(-2), -1)
        expected = _causal(expected) if is_causal else expected
        sees_any = expected.any(-1, keepdim=True)
        if found.size(-1) != probe.size(1) or bool(((found != expected) & sees_any).any()):
            raise ConfigError(
                f"mask '{node.name}', expected one that hides key k where {source.target}[k] is 0"
            )
    return ProvenMask(source, is_causal)


def _list_inputs(node: fx.Node, folded: Folded) -> list[fx.Node]:
    """The inputs of the graph whose values reach a node, in the graph's order."""
    followed = _followed(node, folded)
    return [step for step in node.graph.nodes if step.op == "placeholder" and step in followed]


def _followed(node: fx.Node, folded: Folded) -> set[fx.Node]:
    """The nodes that a value follows from, itself included, and that inputs change."""

    def changing(nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return [step for step in nodes if step not in folded.static]

    return {*reached(changing([node]), lambda step: changing(step.all_input_nodes))}


@torch.no_grad()
def _evaluated(
    mg: MaseGraph, node: fx.Node, source: fx.Node, probe: Tensor, folded: Folded
) -> Tensor:
    """Boolean (B or 1, 1, Q, K): what the mask keeps for a value of an input."""
    run = GraphRunner(mg.model)
    run.env = {**folded.values, source: probe}
    needed = _followed(node, folded) - {source}
    for step in mg.nodes:
        if step in needed:
            run.env[step] = run.run_node(step)
    return _kept(node, run.env[node])


def _kept(node: fx.Node, mask: Tensor) -> Tensor:
    """Boolean (B or 1, 1, Q, K): True where a key is kept.

    Raises:
        ConfigError: some scores are changed and not hidden, or heads have masks of their own.
    """
    if mask.dtype != torch.bool:
        kept = mask == 0
        if bool((~kept & (mask > HIDDEN)).any()):
            raise ConfigError(f"mask '{node.name}', expected one of 0 and at most {HIDDEN:g}")
        mask = kept
    mask = mask.view(*[1] * (4 - mask.dim()), *mask.shape)
    if bool((mask != mask[:, :1]).any()):
        raise ConfigError(f"mask '{node.name}', expected the same for all heads")
    return mask[:, :1]


def _is_causal(node: fx.Node, kept: Tensor) -> bool:
    """Whether keys after each query are hidden, where no input hides any; False: no key is."""
    if bool(kept.all()):
        return False
    if torch.equal(kept, _causal(torch.ones_like(kept))):
        return True
    raise ConfigError(f"mask '{node.name}', expected a causal one or none where no key is hidden")


def _causal(kept: Tensor) -> Tensor:
    return kept & torch.ones_like(kept).tril()


def _probes(example: Tensor) -> Iterator[Tensor]:
    """0 and 1, of the example's shape and dtype."""
    keys = example.size(1)
    for key in range(0, keys, max(1, keys // PROBED_KEYS)):
        one = torch.zeros_like(example)
        one[:, key] = 1
        yield from (one, 1 - one if example.dtype != torch.bool else ~one)
    generator = torch.Generator().manual_seed(0)
    for _ in range(RANDOM_PROBES):
        yield torch.randint(2, example.shape, generator=generator).to(example.dtype)
