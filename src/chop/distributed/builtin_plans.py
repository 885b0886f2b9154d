"""Plans without search: replicated, data parallel, row-sharded weights, and Megatron."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from chop.base.reach import reached
from chop.captured.specs import TensorSpec
from chop.distributed.placements import REPLICATED, sharded
from chop.distributed.plan import Placements, ShardingPlan, format_mesh, named_tensors, parse_mesh
from chop.distributed.products import Product, list_products, placements
from chop.errors import PlanError, did_you_mean, enumerate_names
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind

NAMED_SIZES = 4
"""Maximum number of sizes in a message."""
PlanMaker = Callable[[MaseGraph, tuple[int, ...]], ShardingPlan]


def replicate_plan(mg: MaseGraph, mesh: tuple[int, ...]) -> ShardingPlan:
    """Replicates the whole model on every process, without communication or memory savings."""
    return ShardingPlan(mesh, name="replicate")


def rows_plan(mg: MaseGraph, mesh: tuple[int, ...]) -> ShardingPlan:
    """Shards every weight matrix along its outputs and gathers each result.

    A matrix that does not divide, or whose format cannot be sharded, is replicated.
    """
    plan = _Draft(mesh, "rows")
    for product in list_products(mg):
        if product.columns(mesh[-1]):
            plan.gathered(product)
    return plan.finished(mg)


def megatron_plan(mg: MaseGraph, mesh: tuple[int, ...]) -> ShardingPlan:
    """Shards pairs of linear layers: the first ones along outputs, the last along inputs.

    Between the two, such as in attention heads and activations, each process computes its own part.
    One all-reduce sums the results of the last layers. A pair is gathered instead if its last layer
    cannot be sharded along its inputs, such as with packed codes and blocks that do not divide.
    Linear layers without a partner, embeddings and convolutions are replicated.

    Raises:
        PlanError: if attention heads do not divide by the last axis of the mesh.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
    """
    plan, count = _Draft(mesh, "megatron"), mesh[-1]
    by_node = {product.node: product for product in list_products(mg)}
    taken: set[fx.Node] = set()
    for last in by_node.values():
        if last.node in taken:
            continue
        firsts = _partners(mg, last, by_node, taken)
        if not firsts:
            continue
        # A fused layer, such as query, key and value in one, is split into features of which
        # contiguous chunks hold other parts on each process.
        apart = any(_parts_features(node) for first in firsts for node in _after(first, last))
        joined = last.rows(count) and all(first.columns(count) for first in firsts) and not apart
        for first in firsts:
            if joined:
                _check_heads(mg, first, last, count)
                plan.columns(first)
            elif first.columns(count):
                plan.gathered(first)
        if last.rows(count):
            plan.rows(last)
        elif last.columns(count):
            plan.gathered(last)
        taken |= {last.node, *(first.node for first in firsts)}
    return plan.finished(mg)


def _data_plan(mg: MaseGraph, mesh: tuple[int, ...]) -> ShardingPlan:
    """Replicates the model and shards the samples of each input.

    A batch that is not divisible by the number of processes raises an error in the forward pass.
    """
    cut = (sharded(0),) * len(mesh)
    reads: dict[str, dict[str, Placements]] = {}
    for node in mg.nodes:
        for source in node.all_input_nodes if node.op != "output" else ():
            spec = source.meta.get("spec")
            has_samples = isinstance(spec, TensorSpec) and len(spec.shape) > 0
            if source.op == "placeholder" and has_samples:
                reads.setdefault(node.name, {})[source.name] = cut
    return ShardingPlan(mesh, {}, reads, "data")


PLANS: dict[str, PlanMaker] = {
    "replicate": replicate_plan,
    "data": _data_plan,
    "rows": rows_plan,
    "megatron": megatron_plan,
}
"""Built-in plans by name."""


def find_plan(
    given: ShardingPlan | Mapping[str, Any] | str | Path,
    mg: MaseGraph,
    mesh: tuple[int, ...] | int | str | None = None,
    processes: int = 1,
    other_names: Sequence[str] = (),
) -> ShardingPlan:
    """Resolves a user's plan argument.

    Args:
        given: name in `PLANS`, a plan, the path of its JSON file, or the file's content.
        mg: graph of the plan.
        mesh: processes along each axis; default: the mesh of a given plan, otherwise `processes`.
        processes: number of processes.
        other_names: names that the caller accepts in addition, for the message.

    Raises:
        PlanError: if the plan or file does not exist, is invalid, or has another mesh, or if a plan
            by name shards nothing although it should.
    """
    wanted = None if mesh is None else parse_mesh(mesh)
    if isinstance(given, str) and given in PLANS:
        plan = PLANS[given](mg, wanted or (processes,))
        if PLANS[given] in (rows_plan, megatron_plan):
            _check_shards(plan, mg)
        return plan
    if isinstance(given, Mapping):
        given = ShardingPlan.from_json(given)
    elif not isinstance(given, ShardingPlan):
        if not Path(given).is_file():
            if str(given).lstrip().startswith(("{", "[")):
                raise PlanError(f"plan: write the JSON {given!r:.80} to a file, and pass its path.")
            known = did_you_mean(given, [*other_names, *PLANS])
            raise PlanError(f"'{given}' is neither a file nor the name of a plan: {known}")
        given = ShardingPlan.read(given)
    if wanted is not None and wanted != given.mesh:
        raise PlanError(
            f"the plan is for a mesh of {format_mesh(given.mesh)}, expected {format_mesh(wanted)}."
        )
    return given


def _check_shards(plan: ShardingPlan, mg: MaseGraph) -> None:
    """Raises PlanError if a plan for several processes shards no parameter."""
    count, products = plan.mesh[-1], list_products(mg)
    if plan.parameters or count == 1:
        return
    reason = "the model has no layers of the kind that it shards; plan 'data' shards the inputs."
    if products and not any(each.columns(count) or each.rows(count) for each in products):
        sizes = sorted({size for each in products for size in (each.outputs, each.inputs)})
        named = enumerate_names([*map(str, sizes)], NAMED_SIZES)
        reason = (
            f"the model's matrices have the sizes {named}, which "
            f"{count} processes cannot share evenly; the last axis of the mesh has to divide them."
        )
    raise PlanError(f"plan '{plan.name}' shards nothing: {reason}")


class _Draft:
    """A plan under construction."""

    def __init__(self, mesh: tuple[int, ...], name: str) -> None:
        self.mesh, self.name = mesh, name
        self.parameters: dict[str, Placements] = {}
        self.reads: dict[str, dict[str, Placements]] = {}

    def columns(self, product: Product) -> None:
        """Shards a product along its outputs."""
        self.parameters |= placements(product.along_outputs, self.mesh)

    def gathered(self, product: Product) -> None:
        """Shards a product along its outputs; all readers read the gathered result."""
        self.columns(product)
        self._read_whole(product)

    def rows(self, product: Product) -> None:
        """Shards a product along its inputs; all readers read the reduced sum."""
        self.parameters |= placements(product.along_inputs, self.mesh)
        self._read_whole(product)

    def _read_whole(self, product: Product) -> None:
        for user in product.node.users:
            if user.op != "output":
                whole = (REPLICATED,) * len(self.mesh)
                self.reads.setdefault(user.name, {})[product.node.name] = whole

    def finished(self, mg: MaseGraph) -> ShardingPlan:
        """Returns the plan, with tied tensors, such as an embedding table, sharded alike."""
        tensors = named_tensors(mg.model)
        # Tied tensors are one object under several paths.
        cut = {id(x): self.parameters[path] for path, x in tensors if path in self.parameters}
        parameters = {path: cut[id(x)] for path, x in tensors if id(x) in cut}
        return ShardingPlan(self.mesh, parameters, self.reads, self.name)


def _partners(
    mg: MaseGraph, last: Product, by_node: dict[fx.Node, Product], taken: set[fx.Node]
) -> list[Product]:
    """Returns the products that feed a product through nodes without weights; none if others do."""
    partners = []
    for node in _between(last.data_in, by_node):
        if node in by_node:
            if node in taken:
                return []
            partners.append(by_node[node])
        row, module = mg.operator(node), mg.get_module(node)
        # A norm needs all features, and other layers with weights are replicated.
        stops = row.kind is Kind.NORM or (row.weight is not None and node not in by_node)
        if stops and module is not None:
            return []
    return partners


def _between(start: fx.Node, by_node: dict[fx.Node, Product]) -> Iterator[fx.Node]:
    """Returns the nodes from products to `start`, including both."""
    return reached([start], lambda node: [] if node in by_node else node.all_input_nodes)


def _after(first: Product, last: Product) -> Iterator[fx.Node]:
    """Returns the nodes between two products."""
    before = {
        *reached([last.data_in], lambda x: [n for n in x.all_input_nodes if n is not first.node])
    }
    after = reached([first.node], lambda x: [user for user in x.users if user in before])
    return (node for node in after if node is not first.node)


def _parts_features(node: fx.Node) -> bool:
    """Returns whether a node splits features, such as a fused query, key and value."""
    return isinstance(node.meta.get("spec"), tuple | list)


def _check_heads(mg: MaseGraph, first: Product, last: Product, count: int) -> None:
    for node in _after(first, last):
        spec = node.meta.get("spec")
        if mg.operator(node).layout != "view" or not isinstance(spec, TensorSpec):
            continue
        heads, size = (0, 0, *spec.shape)[-2:]
        if not isinstance(heads, int) or not isinstance(size, int):
            continue
        # A view of the outputs as (heads, size): each process needs whole heads.
        if heads * size == first.outputs and heads % count:
            raise PlanError(
                f"node '{node.name}' has {heads} heads, which {count} processes cannot share "
                f"evenly; the last axis of the mesh has to divide {heads}."
            )
