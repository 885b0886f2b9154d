"""Demand-driven lowering of a quantized graph, from outputs to inputs.

An operator's result is exact: an integer multiple of a step. A reader with a format gets it rounded
once, directly after the operator. Layout operators in between move codes. Unused values are not
computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.reach import reached
from chop.errors import ConfigError
from chop.integer.builder import GraphBuilder
from chop.integer.calls import (
    WITH_NUMBERS,
    BoundCall,
    bind,
    has_thresholds,
    is_lookup,
    is_moved,
    selects_codes,
)
from chop.integer.folding import Folded
from chop.integer.grids import AnyGrid, Grids, grid_text, holds, requantizer
from chop.integer.steps import Attended, Codes, Step
from chop.integer.suggestions import ROUNDED_AHEAD, explain_missing_format
from chop.integer.uncoded import UncodedValues
from chop.ir.graph import MaseGraph
from chop.nn.integer import (
    BlockGrid,
    ChannelMap,
    Constant,
    Decode,
    Edge,
    Encode,
    EncodeBlocks,
    Grid,
    IntegerBatchNorm,
    IntegerConvTranspose2d,
    IntegerGroupNorm,
    IntegerLinear,
    IntegerMatmul,
    IntegerNegate,
    IntegerOperator,
    IntegerOptions,
    IntegerReLU,
    IntegerSquare,
    IntegerThresholds,
    Table,
)
from chop.nn.integer.table import exceeds_table
from chop.nn.quantized import QuantizedOperator, QuantScaledDotProductAttention

FINE_BITS = 40
"""Bits of tables without an integer output format, and of constants combined with exact results."""
LowerAttention = Callable[["GraphLowering", fx.Node, QuantScaledDotProductAttention], Codes]
"""Lowers an attention node with its module; returns the codes of its result."""


class GraphLowering:
    """Builds an integer graph on demand.

    Args:
        mg: the quantized graph, settled and checked by `refusals`.
        folded: its values on the example.
        grids: grids of its operands.
        options: widths inside operators.
        lower_attention: lowers an attention, which takes several steps.
    Attributes:
        whole: values on whole sequences; they differ from `folded` in a step of a decoder.
    """

    def __init__(
        self,
        mg: MaseGraph,
        folded: Folded,
        grids: Grids,
        options: IntegerOptions,
        lower_attention: LowerAttention,
    ) -> None:
        self.mg, self.folded, self.grids, self.options = mg, folded, grids, options
        self.whole, self._lower_attention = folded, lower_attention
        self.builder = GraphBuilder(mg)
        self.uncoded = UncodedValues(mg, folded, self.builder)
        self.steps: list[Step] = []
        self._steps_by_node: dict[fx.Node, Step] = {}
        self._exact: dict[fx.Node, Codes] = {}
        self._coded: dict[tuple[fx.Node, AnyGrid], Codes] = {}

    def run(self) -> None:
        """Builds the whole graph, with the inputs and outputs of the old one."""
        self.add_inputs()
        (output,) = (node for node in self.mg.nodes if node.op == "output")
        self.builder.again(output, self.decoded)

    def add_inputs(self) -> None:
        """Adds the inputs of the old graph."""
        self.uncoded.add_inputs()

    def decoded(self, node: fx.Node) -> Any:
        """Returns a node's result as real numbers, or the output structure of the model."""
        if not self.folded.has_tensors(node):
            static = node in self.folded.static
            return self.folded.values[node] if static else self.builder.again(node, self.decoded)
        if not self.folded.is_float(node):
            return self.uncoded.whole_numbers(node)
        if node not in self.folded.static and is_moved(self.mg, node, self.folded):
            return self.uncoded.move(node, self.decoded)
        exact = self.exact(node)
        if node in self._steps_by_node:
            self._steps_by_node[node].is_decoded = True
        return self.builder.call_module(node, Decode(exact.proven), (exact.node,), "_decoded")

    def visible_keys(
        self, node: fx.Node, mask: Any, is_causal: bool, sizes: tuple[int, int]
    ) -> fx.Node | None:
        """Returns the boolean mask of an attention, see `UncodedValues.visible_keys`."""
        return self.uncoded.visible_keys(node, mask, is_causal, sizes)

    def coded(self, node: fx.Node, grid: AnyGrid) -> Codes:
        """Returns a node's result in the codes of a reader's grid."""
        if (node, grid) not in self._coded:
            self._coded[node, grid] = self._code(node, grid)
        return self._coded[node, grid]

    def attended(self, source: fx.Node, grid: AnyGrid, groups: int) -> Attended:
        """Returns the keys or values of an attention.

        Args:
            source: keys or values.
            grid: grid of the reader.
            groups: heads of queries for each of their heads.
        """
        return Attended((self.coded(source, grid),), groups)

    def constant(self, node: fx.Node, grid: AnyGrid, suffix: str) -> Codes:
        """Returns a value that does not depend on inputs in the codes of a reader's grid."""
        constant = Constant.of(self.folded.values[node], grid, self.loaded_ends(node, grid))
        return self.call(node, constant, (), suffix)

    def loaded_ends(self, node: fx.Node, grid: AnyGrid) -> tuple[int, int] | None:
        """Returns the smallest and largest code of a loadable constant; None if it is fixed.

        Constants are loadable if they depend on parameters or buffers and have a format.
        """
        if not self.options.is_loadable or isinstance(grid, BlockGrid) or grid.high >= 2**FINE_BITS:
            return None
        sources = reached([node], lambda each: each.all_input_nodes)
        is_trained = any(each.op in ("get_attr", "call_module") for each in sources)
        return (grid.low, grid.high) if is_trained else None

    def _code(self, node: fx.Node, grid: AnyGrid) -> Codes:
        suffix = f"_to_{grid_text(grid)}"
        if node in self.folded.static:
            return self.constant(node, grid, suffix)
        if isinstance(grid, BlockGrid):
            return self._code_blocks(node, grid, suffix)
        source = self.uncoded.scaled_input(node)
        if source is not None:
            return self.call(node, Encode(grid), (Codes(source, None),), suffix)
        if is_moved(self.mg, node, self.folded):
            sources: list[Codes] = []

            def read(source: fx.Node) -> Any:
                if not self.folded.is_float(source):
                    return self.uncoded.argument(source)
                sources.append(self.coded(source, grid))
                return sources[-1].node

            moved = self.uncoded.move(node, read)
            ends = [(source.proven.low, source.proven.high) for source in sources]
            low, high = min(low for low, _ in ends), max(high for _, high in ends)
            return Codes(moved, Edge.of(grid.step, low, high))
        if is_lookup(self.mg, node, self.folded) and self._data_out(node) is None:
            return self._table(node, grid)
        if self.mg.operator(node).integer is IntegerNegate and grid.rounding == "nearest_even":
            return self._negated(node, grid)
        if selects_codes(self.mg, node, grid):
            return self._compute_codes(node, grid, suffix)
        if has_thresholds(self.mg, node, grid):
            return self._compare(node, grid, suffix)
        return self._round(node, grid, suffix)

    def _compute_codes(self, node: fx.Node, grid: Grid, suffix: str) -> Codes:
        """Rounds the operand of a node that selects codes, instead of its result."""
        bound, row = bind(self.mg, node, self.folded), self.mg.operator(node)
        assert row.integer is not None
        read = self.coded(bound.inputs[0], grid)
        with _naming(node):
            operator = row.integer.from_quantized(
                self.mg.get_module(node), [read.proven], self.options, bound.call
            )
        result = self.call(node, operator, (read,), suffix)
        step = Step(node.name, row.name, (read,), result, bound.reference, self.dtype(node))
        step.readers.append((result.node, grid))
        self.steps.append(step)
        return result

    def _like(self, node: fx.Node, suffix: str = "") -> nn.Module | None:
        """Returns the operator of a circuit at the path of the next one; None without a circuit."""
        return self.options.circuit.get(self.builder.path(node, suffix))

    def _requantizer(
        self, node: fx.Node, edge: Edge, grid: AnyGrid, suffix: str
    ) -> IntegerOperator:
        return requantizer(edge, grid, self._like(node, suffix))

    def _compare(
        self, node: fx.Node, grid: Grid, suffix: str, relu: Callable[[Tensor], Tensor] | None = None
    ) -> Codes:
        """Rounds a batch norm by comparisons, ahead of the monotone operators that read it.

        Args:
            node: batch norm, maximum pooling or ReLU.
            grid: grid of the reader.
            suffix: suffix of the new operators.
            relu: ReLU of the result. The grid has no negative codes then.
        """
        bound = bind(self.mg, node, self.folded)
        row, (source,), module = self.mg.operator(node), bound.inputs, self.mg.get_module(node)
        if row.integer is IntegerReLU:
            narrow = replace(grid, low=max(grid.low, 0), high=max(grid.high, 0))
            return self._compare(source, narrow, suffix, bound.reference)
        if row.integer is IntegerBatchNorm:
            with _naming(node):
                read = self.exact(source)
                channels = ChannelMap.of(module, read.proven, len(self.folded.shape(source)))
            is_loadable = self.options.is_loadable
            operator: IntegerOperator = IntegerThresholds(read.proven, channels, grid, is_loadable)
        else:
            read = self._compare(source, grid, suffix, relu)
            assert row.integer is not None
            operator = row.integer.from_quantized(module, [read.proven], self.options, bound.call)
        result = self.call(node, operator, (read,), suffix)

        def reference(*values: Tensor) -> Tensor:
            expected = bound.reference(*values)
            return expected if relu is None else relu(expected)

        step = Step(node.name, row.name, (read,), result, reference, self.dtype(node))
        step.readers.append((result.node, grid))
        self.steps.append(step)
        return result

    def _negated(self, node: fx.Node, grid: Grid) -> Codes:
        """Rounds the operand of a negation instead of its result, on the mirrored grid."""
        mirrored = replace(grid, low=-grid.high, high=-grid.low)
        read = self.coded(node.all_input_nodes[0], mirrored)
        operator = IntegerNegate.from_quantized(None, [read.proven], self.options)
        return self.call(node, operator, (read,), f"_to_{grid_text(grid)}")

    def _code_blocks(self, node: fx.Node, grid: BlockGrid, suffix: str) -> Codes:
        """Rounds to blocks after layout operators, because blocks run along axes of the operand."""
        unrounded = self.uncoded.unrounded_input(node)
        if unrounded is not None:
            return self.call(node, EncodeBlocks(grid), (Codes(unrounded, None),), suffix)
        return self._round(node, grid, suffix)

    def _round(self, node: fx.Node, grid: AnyGrid, suffix: str) -> Codes:
        exact = self.exact(node)
        coded = exact
        if not holds(grid, exact.proven):
            with _naming(node):
                requantize = self._requantizer(node, exact.proven, grid, suffix)
            coded = self.call(node, requantize, (exact,), suffix)
        if node in self._steps_by_node:
            self._steps_by_node[node].readers.append((coded.node, grid))
        return coded

    def exact(self, node: fx.Node) -> Codes:
        """Returns the exact codes of a node's result, before requantization."""
        if node not in self._exact:
            with _naming(node):
                self._exact[node] = self._lower(node)
        return self._exact[node]

    def _lower(self, node: fx.Node) -> Codes:
        if node not in self.folded.static and is_moved(self.mg, node, self.folded):
            return self._exact_move(node)
        module = self.mg.get_module(node)
        if isinstance(module, QuantScaledDotProductAttention):
            return self._lower_attention(self, node, module)
        row, grid = self.mg.operator(node), self._data_out(node)
        if row.integer is None or node in self.folded.static:
            raise ConfigError(explain_missing_format(self.mg, node))
        if is_lookup(self.mg, node, self.folded):
            result = self._table(node, grid if isinstance(grid, Grid) else None)
            if not isinstance(grid, BlockGrid):
                return result
            suffix = f"_to_{grid_text(grid)}"
            requantize = self._requantizer(node, result.proven, grid, suffix)
            return self.call(node, requantize, (result,), suffix)
        bound = bind(self.mg, node, self.folded)
        if (matrix := self._constant_matrix(row.integer, bound)) is not None:
            return self._multiply(node, bound, matrix)
        inputs = tuple(map(self._read, bound.inputs, bound.operands, [bound] * len(bound.inputs)))
        result = self._add_steps(node, row.integer, bound, inputs)
        return self.note(
            node, Step(node.name, row.name, inputs, result, bound.reference, self.dtype(node))
        )

    def _constant_matrix(self, kind: type[IntegerOperator], bound: BoundCall) -> Constant | None:
        """Returns the second operand of a product if it is a constant matrix or vector."""
        if kind is not IntegerMatmul or bound.module is None or bound.operands[1] is None:
            return None
        (_, other), grid = bound.inputs, self.grids.of(bound.module, bound.operands[1])
        shape = bound.call.shapes[1]
        is_matrix = math.prod(shape[:-2]) == 1 and other in self.folded.static
        if not is_matrix or not isinstance(grid, Grid):
            return None
        return Constant.of(self.folded.values[other], grid, self.loaded_ends(other, grid))

    def _multiply(self, node: fx.Node, bound: BoundCall, matrix: Constant) -> Codes:
        """Lowers a product with a constant matrix to a linear layer."""
        source, other = bound.inputs
        read, value = self._read(source, bound.operands[0], bound), self.folded.values[other]
        layer = IntegerLinear.from_constant(read.proven, matrix, bound.call.shapes[0][-1])
        result = self.call(node, layer, (read,))
        if value.dim() == 1:
            vector = self.builder.call_method(node, "squeeze", result.node, -1)
            result = Codes(vector, result.edge)

        def reference(*values: Tensor) -> Tensor:
            return bound.reference(*values, value)

        kind = self.mg.operator(node).name
        return self.note(node, Step(node.name, kind, (read,), result, reference, self.dtype(node)))

    def _add_steps(
        self, node: fx.Node, kind: type[IntegerOperator], bound: BoundCall, inputs: Sequence[Codes]
    ) -> Codes:
        """Adds the operator of a node; some consist of several."""
        module, edges = bound.module or self.mg.get_module(node), [x.edge for x in inputs if x.edge]
        if issubclass(kind, IntegerConvTranspose2d):
            spread = kind.spread(module, edges[0], bound.call)
            inputs = (self.call(node, spread, tuple(inputs), "_spread"),)
            edges = [spread.out]
        if not issubclass(kind, IntegerGroupNorm):
            call = replace(bound.call, like=self._like(node))
            operator = kind.from_quantized(module, edges, self.options, call)
            times = 2 if issubclass(kind, IntegerSquare) else 1
            return self.call(node, operator, tuple(inputs) * times)
        if not isinstance(module, nn.GroupNorm):
            raise ConfigError("a group norm by a function call has no integer form; use a module.")
        shape = list(bound.call.shapes[0])
        rows = [-1, module.num_groups, math.prod(shape[1:]) // module.num_groups]
        grouped = self.builder.call_method(node, "reshape", inputs[0].node, rows)
        norm = kind.from_quantized(module, edges, self.options, replace(bound.call, shapes=[rows]))
        normed = self.call(node, norm, (Codes(grouped, edges[0]),), "_normalized")
        codes = self.builder.call_method(node, "reshape", normed.node, [-1, *shape[1:]])
        channels = ChannelMap.from_group_norm(module, norm.out.scalar_step, len(shape))
        is_loadable, like = self.options.is_loadable, self._like(node)
        scale = IntegerBatchNorm(norm.out, channels, is_loadable, like)
        return self.call(node, scale, (Codes(codes, norm.out),))

    def _data_out(self, node: fx.Node) -> AnyGrid | None:
        module = self.mg.get_module(node)
        return self.grids.of(module, "data_out") if isinstance(module, QuantizedOperator) else None

    def _table(self, node: fx.Node, grid: Grid | None) -> Codes:
        """Returns a function table with a reader's grid, or the finest steps that int64 allows."""
        bound = bind(self.mg, node, self.folded)
        read = self._index(node, bound)
        chosen = grid or Table.fine_grid(bound.unrounded, read.proven, FINE_BITS)
        table = Table.of(bound.unrounded, read.proven, chosen)
        result = self.call(node, table, (read,), f"_to_{grid_text(chosen)}")
        kind = self.mg.operator(node).name
        step = Step(node.name, kind, (read,), result, bound.reference, self.dtype(node))
        self.steps.append(step)
        if grid is None:
            self._steps_by_node[node] = step
        else:
            step.readers.append((result.node, grid))
        return result

    def _index(self, node: fx.Node, bound: BoundCall) -> Codes:
        """Returns the codes that select the entries of a function table."""
        (source, *_), (operand, *_) = bound.inputs, bound.operands
        module = bound.module
        if module is None or operand is None or self.grids.of(module, operand) is None:
            real = self.uncoded.scaled_input(source) or self.uncoded.unrounded_input(source)
            if real is not None or exceeds_table(self._read(source, operand, bound).proven):
                given = (
                    "real numbers" if real is not None else "more codes than a table has entries"
                )
                raise ConfigError(
                    f"'{node.name}' ({self.mg.operator(node).name}) has no format, and its input "
                    f"has {given}; {ROUNDED_AHEAD}"
                )
        return self._read(source, operand, bound)

    def dtype(self, node: fx.Node) -> torch.dtype:
        """Returns the dtype of a node's result in the quantized graph."""
        value: Tensor = self.folded.values[node]
        return value.dtype

    def note(self, node: fx.Node, step: Step) -> Codes:
        """Records an operator for comparison, and requantizes its result if it has a format."""
        self.steps.append(step)
        self._steps_by_node[node] = step
        grid = self._data_out(node)
        if grid is None:
            return step.result
        suffix = f"_to_{grid_text(grid)}"
        requantize = self._requantizer(node, step.result.proven, grid, suffix)
        rounded = self.call(node, requantize, (step.result,), suffix)
        step.readers.append((rounded.node, grid))
        del self._steps_by_node[node]
        return rounded

    def _read(self, node: fx.Node, operand: str | None, bound: BoundCall) -> Codes:
        if not self.folded.is_float(node):
            if node in self.folded.static and self.mg.operator(bound.node).integer in WITH_NUMBERS:
                # torch reads a constant of integers as it is.
                values: Tensor = self.folded.values[node]
                return self.call(node, Constant(values.long(), 1.0), (), "_codes")
            return Codes(self.uncoded.whole_numbers(node), None)
        if bound.module is None or operand is None:
            return self.exact(node)
        grid = self.grids.of(bound.module, operand)
        # Without a format, `IntegerOperator.reads_exact` holds.
        return self.exact(node) if grid is None else self.coded(node, grid)

    def _exact_move(self, node: fx.Node) -> Codes:
        """Moves one exact result; constant operands are rounded to its step."""
        floats = [given for given in node.all_input_nodes if self.folded.is_float(given)]
        followed = [given for given in floats if given not in self.folded.static]
        if len(followed) != 1 or self.exact(followed[0]).proven.step.dim():
            raise ConfigError(
                "it joins or moves values with different steps, and "
                + explain_missing_format(self.mg, node)
            )
        exact = self.exact(followed[0]).proven
        grid = Grid(exact.scalar_step, -(2**FINE_BITS), 2**FINE_BITS)
        codes_by_node = {
            given: self.coded(given, grid) for given in floats if given not in followed
        }
        codes_by_node[followed[0]] = self.exact(followed[0])
        low = min(codes.proven.low for codes in codes_by_node.values())
        high = max(codes.proven.high for codes in codes_by_node.values())

        def read(source: fx.Node) -> Any:
            moved = codes_by_node.get(source)
            return self.uncoded.argument(source) if moved is None else moved.node

        return Codes(self.uncoded.move(node, read), replace(exact, low=low, high=high))

    def call(
        self, node: fx.Node, operator: IntegerOperator, inputs: tuple[Codes, ...], suffix: str = ""
    ) -> Codes:
        """Adds a call of an integer operator at the path of `node`, with an optional suffix."""
        nodes = tuple(given.node for given in inputs)
        return Codes(self.builder.call_module(node, operator, nodes, suffix), operator.out)


@contextmanager
def _naming(node: fx.Node) -> Iterator[None]:
    """Adds the name of a node to errors, unless they have that of an earlier one."""
    try:
        yield
    except ConfigError as error:
        if str(error).startswith("node '"):
            raise
        raise ConfigError(f"node '{node.name}': {error}") from error
