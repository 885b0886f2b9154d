"""Block walk: rounds a decoder block by block with one float block in memory.

For each part it

1. reads the part's float weights,
2. packs tables, which no method rounds,
3. passes the part to a rounding method,
4. runs the rounded part, which computes the inputs of the next one,
5. packs it, writes codes and these values to files, and releases the float weights.

A killed walk resumes after the last part with complete files and produces the same bytes. Files
have a temporary name until they are complete, and the journal records a part after its files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chop.captured.runtime import exit_open_regions
from chop.ir.graph import MaseGraph
from chop.ir.layers import user_besides
from chop.nn.packed import PackedOperator
from chop.nn.packed.packing import packed_class
from chop.nn.quantized import QuantizedOperator
from chop.quantization.packing import Selection, pack_layers
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.parts import Part
from chop.quantization.walk.walk import Batch, Rounded, Rounder, Stage, Walk
from chop.quantization.walk.weights import LazyWeights


class BlockWalk(Walk):
    """Walk that rounds a graph part by part with results in files; see the module.

    Args:
        mg: graph to change, on the meta device, quantized in formats that need no calibration.
        parts: from `get_parts`.
        weights: weights of the graph's model.
        batches: from `select_inputs`.
        files: storage of finished parts.
        runs_float: also runs the float parts, on the results of earlier float parts.
    """

    def __init__(
        self,
        mg: MaseGraph,
        parts: Sequence[Part],
        weights: LazyWeights,
        batches: Sequence[Batch],
        files: BlockFiles,
        runs_float: bool = False,
    ) -> None:
        super().__init__(mg, batches, parts, files.scratch, runs_float)
        self.files, self.weights = files, weights

    def run(self, round_part: Rounder, stage: Stage = contextlib.nullcontext) -> list[Rounded]:
        """Rounds every part. Afterwards the graph has packed layers with codes in files.

        Args:
            round_part: rounding method.
            stage: shows progress.
        Returns: the results of all parts, including those of an earlier run, without values.
        """
        results = []
        done = self.files.whole(len(self.parts))
        for number, part in enumerate(self.parts):
            if number < done:
                results.append(self._restore(number, part))
                continue
            with stage(part.name):
                results.append(self._round(number, part, round_part))
        return results

    def _round(self, number: int, part: Part, round_part: Rounder) -> Rounded:
        names = self._tensors(part)
        self.weights.load(names)
        exact = self.files.inputs(number, self.mg, exact=True) if self.runs_float else None
        with self.at_work():
            block = self.block(number, self.files.inputs(number, self.mg), exact)
            self._pack(part, tables=True)
            self.weights.free_unused(names)
            rounded = round_part(block)
            values = rounded.values or block.run()
        self._pack(part)
        # In pairs, as the journal sorts keys.
        record = {"told": rounded.report, "left": list(rounded.skipped.items())}
        state = self._state(part)
        self.files.keep(number, state, None if block.is_last else values, record, block.targets)
        self._put(number, part)
        self.weights.free_unused(names)
        return replace(rounded, values=None)

    def _restore(self, number: int, part: Part) -> Rounded:
        """Restores a part from an earlier run: packed layers of zeros, and then its codes."""
        self._pack(part, tables=True)
        self._pack(part)
        self._put(number, part)
        record = self.files.record(number)
        return Rounded(record["told"], dict(record["left"]))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Sets eval mode without gradients for a walk."""
        with torch.no_grad(), exit_open_regions():
            self.mg.model.eval()
            yield

    @contextlib.contextmanager
    def loaded(self, part: Part) -> Iterator[None]:
        """Loads the weights of a part within the context."""
        names = self._tensors(part)
        self.weights.load(names)
        try:
            yield
        finally:
            self.weights.free(names)

    def change(self, x: Tensor, change: Callable[[Tensor], None]) -> None:
        """Changes a tensor in memory, and again after each reload."""
        self.weights.change(x, change)

    def _put(self, number: int, part: Part) -> None:
        """Maps the tensors of a part from its file."""
        self.weights.put(self.files.tensors(number))

    def _modules(self, part: Part) -> list[str]:
        """Returns the paths of the modules and attributes of a part."""
        called = (n for n in part.nodes if n.op in ("call_module", "get_attr"))
        return list(dict.fromkeys(str(node.target) for node in called))

    def _tensors(self, part: Part) -> list[str]:
        """Returns the names of the parameters and buffers that a part reads."""
        return self.weights.names_under(self._modules(part))

    def _state(self, part: Part) -> dict[str, Tensor]:
        """Returns the tensors of a part by name, packed ones as codes."""
        return self.weights.state_under(self._modules(part))

    def _pack(self, part: Part, tables: bool = False) -> None:
        """Packs the quantized layers of a part, or only its tables.

        Layers that share a weight are packed together.
        """
        modules, nodes = self.mg.modules, {str(n.target): n for n in part.nodes}
        floats = {
            path: module
            for path, module in modules.items()
            if isinstance(module, QuantizedOperator)
            and not isinstance(module, PackedOperator)
            and packed_class(module) is not None
            and not module.spec.weight.is_identity
        }
        own = [path for path in self._modules(part) if path in floats]
        if tables:
            own = [path for path in own if not self.mg.operator(nodes[path]).is_product]
        weights = {id(floats[path].weight) for path in own}
        chosen = [path for path, module in floats.items() if id(module.weight) in weights]
        together = [floats[path] for path in chosen]
        free = [x for x in chosen if user_besides(self.mg, floats[x].weight, together) is None]
        if free:
            pack_layers(self.mg, Selection(tuple(free)), exact=False)
