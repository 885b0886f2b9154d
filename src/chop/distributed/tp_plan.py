"""Tensor-parallel plan for transformers, with a style for each linear layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx, nn

from chop.distributed.checking.slice_influence import influenced_layers
from chop.distributed.placements import REPLICATED, sharded
from chop.distributed.plan import ShardingPlan, format_mesh
from chop.errors import PlanError
from chop.ir.graph import MaseGraph
from chop.nn.transposed import stores_transposed

ROWS, COLUMNS = sharded(0), sharded(1)
TABLES = {REPLICATED: "replicate", ROWS: "embedding_rowwise", COLUMNS: "embedding_colwise"}
LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def tp_plan(mg: MaseGraph, plan: ShardingPlan) -> dict[str, str]:
    """Returns the plan for `DistributedConfig(tp_plan=...)` of transformers.

    A linear layer is `colwise` if its weight has the placement S0, and `colwise_gather_output` if
    another node or the model's output reads its whole result. It is `rowwise` if its weight has S1,
    and `rowwise_split_input` if its input is whole. Embeddings may be sharded too. All other linear
    layers and embeddings are named `replicate`, because transformers may have its own plan that
    would shard them.

    transformers runs the model's own Python on the parts of each process. Operators between two
    sharded layers therefore have to work on each part separately. This is measured, see
    `chop.distributed.checking.slice_influence`.

    Args:
        mg: the graph, with weights, of a model with transformers' module names.
        plan: plan with several processes on exactly one mesh axis.
    Returns: a style by path, with `*` for layer numbers.
    Raises:
        PlanError: if the plan shards other layers than linear layers and embeddings, layers whose
            paths differ by numbers have different styles, or an operator between two layers needs
            data of other processes. The message names the parameter.
    Source: transformers 5.23, `transformers/distributed/tensor_parallel.py`.

    Example:
        >>> mg = MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        >>> parameters = {"0.weight": ("S0",), "0.bias": ("S0",), "2.weight": ("S1",)}
        >>> tp_plan(mg, ShardingPlan((2,), parameters))
        {'0': 'colwise', '2': 'rowwise'}
    """
    layers = _Layers.of(mg, plan.checked(mg))
    split = influenced_layers(mg, plan.processes, layers.local, layers.summed)
    styles = layers.styles | {
        str(node.target): "rowwise_split_input" for node in layers.summed if node not in split
    }
    styles_by_pattern: dict[str, str] = {}
    for path, style in styles.items():
        pattern = LAYER_NUMBER.sub(".*", path)
        if styles_by_pattern.setdefault(pattern, style) != style:
            raise PlanError(
                f"'{path}.weight': transformers shards all of '{pattern}' alike, but the plan "
                f"has the styles {styles_by_pattern[pattern]} and {style}."
            )
    return styles_by_pattern


@dataclass
class _Layers:
    """Linear layers and embeddings of a graph.

    Attributes:
        styles: style by path.
        local: nodes with a result sharded over the processes.
        summed: nodes that sum over parts of their input.
    """

    styles: dict[str, str] = field(default_factory=dict)
    local: set[fx.Node] = field(default_factory=set)
    summed: set[fx.Node] = field(default_factory=set)

    @classmethod
    def of(cls, mg: MaseGraph, plan: ShardingPlan) -> _Layers:
        """Reads the layers of a checked plan.

        Raises:
            PlanError: if the plan has a placement without a style.
        """
        axis = _axis(plan)
        texts = {path: placements[axis] for path, placements in plan.parameters.items()}
        layers = cls()
        for node in mg.nodes:
            module = mg.get_module(node)
            # Stand-ins for layers of transformers may store the transposed weight.
            if isinstance(module, nn.Linear) and not stores_transposed(module):
                layers._add_linear(node, module, texts, _is_gathered(node, plan, axis))
            elif isinstance(module, nn.Embedding):
                layers.styles[str(node.target)] = TABLES[texts.get(f"{node.target}.weight", "R")]
        for path, text in texts.items():
            if text != REPLICATED and path.rpartition(".")[0] not in layers.styles:
                raise PlanError(
                    f"'{path}' has the placement {text}, but transformers only shards linear "
                    "layers and embeddings; replicate it (R)."
                )
        return layers

    def _add_linear(
        self, node: fx.Node, module: nn.Linear, texts: Mapping[str, str], is_gathered: bool
    ) -> None:
        path = str(node.target)
        weight = texts.get(f"{path}.weight", REPLICATED)
        # A bias is cut with the outputs, or added to whole sums.
        bias, expected = texts.get(f"{path}.bias", REPLICATED), {ROWS: ROWS}.get(weight, REPLICATED)
        if module.bias is not None and bias != expected:
            raise PlanError(
                f"'{path}.bias' has the placement {bias}, expected {expected} for a "
                f"weight with {weight}."
            )
        if weight == ROWS:
            self.styles[path] = "colwise_gather_output" if is_gathered else "colwise"
            self.local |= set() if is_gathered else {node}
        elif weight == COLUMNS:
            self.styles[path] = "rowwise"
            self.summed.add(node)
        else:
            self.styles[path] = "replicate"


def _axis(plan: ShardingPlan) -> int:
    """Returns the mesh axis with several processes."""
    axes = [axis for axis, size in enumerate(plan.mesh) if size > 1]
    if len(axes) != 1:
        raise PlanError(
            f"mesh {format_mesh(plan.mesh)}: transformers' tp_plan supports several "
            "processes on one axis only."
        )
    return axes[0]


def _is_gathered(node: fx.Node, plan: ShardingPlan, axis: int) -> bool:
    """Returns whether a user of a result reads it whole."""
    return any(
        user.op == "output"
        or plan.reads.get(user.name, {}).get(node.name, (None,) * len(plan.mesh))[axis]
        == REPLICATED
        for user in node.users
    )
