"""Rules of padding mask propagation for each operator.

Padding is propagated by element. A sum is hidden if all its terms are: a token that attends to
others is not hidden by those that its mask hides. An element-wise result is hidden if any of its
inputs is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_map
from chop.private.torch_api import get_schema

aten = torch.ops.aten

MOVED = ("self", "tensors", "src", "source", "values", "weight")
"""Arguments of operators that move elements: the moved tensors, not the positions."""


@dataclass(frozen=True)
class Executed:
    """An executed operator.

    Attributes:
        func: the overload.
        given: its arguments by the names of its schema, including defaults.
        results: its tensors.
        hidden: returns a boolean mask of the hidden elements of a tensor, which expands to its
            shape. None if no element is hidden.
    """

    func: Any
    given: Mapping[str, Any]
    results: Sequence[Tensor]
    hidden: Callable[[Tensor], Tensor | None]

    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors, or lists of tensors."""
        listed = [x if isinstance(x, list | tuple) else [x] for x in self.given.values()]
        return [x for item in listed for x in item if isinstance(x, Tensor)]

    def hidden_inputs(self) -> list[tuple[Tensor, Tensor]]:
        """Returns the arguments with hidden elements, and their masks."""
        return [(x, mask) for x in self.tensors() if (mask := self.hidden(x)) is not None]

    def number(self, x: Tensor) -> Tensor:
        """Returns float32 ones for hidden elements and zeros for others, in new memory."""
        mask = self.hidden(x)
        numbers = torch.zeros(x.shape, device=x.device)
        return numbers if mask is None else numbers.copy_(mask)

    def rerun(self, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Calls the operator with `change(x)` in place of each tensor that it moves or sums."""
        placed, named = [], {}
        for argument in get_schema(self.func).arguments:
            value = self.given[argument.name]
            if argument.name in MOVED:
                value = tree_map(lambda x: change(x) if isinstance(x, Tensor) else x, value)
            elif argument.name == "value" and not isinstance(value, Tensor):
                value = 0.0  # value of new elements
            if not argument.kwarg_only:
                placed.append(value)
            elif not argument.is_out:
                named[argument.name] = value
        result = self.func(*placed, **named)
        first: Tensor = result[0] if isinstance(result, tuple | list) else result
        return first


Rule = Callable[[Executed, Tensor], Tensor | None]
"""Maps (executed operator, one of its results) to a mask that expands to that result."""


def nothing(run: Executed, result: Tensor) -> None:
    """Hides nothing, for new elements."""


def elementwise(run: Executed, result: Tensor) -> Tensor | None:
    """Hides an element if any of its inputs is hidden, broadcast."""
    masks = [hidden for _, hidden in run.hidden_inputs()]
    return functools.reduce(torch.logical_or, masks) if masks else None


def moved(run: Executed, result: Tensor) -> Tensor:
    """Hides elements that were hidden before they moved."""
    return run.rerun(run.number) > 0


def summed(run: Executed, result: Tensor) -> Tensor:
    """Hides elements whose terms are all hidden."""
    into = run.given["self"]

    def visible(x: Tensor) -> Tensor:
        number = run.number(x)
        return torch.zeros_like(number) if x is into else 1 - number

    return moved(run, result) & (run.rerun(visible) <= 0)


def looked_up(run: Executed, result: Tensor) -> Tensor:
    """Hides elements that were hidden before, or that hidden indices selected."""
    source = run.given.get("self", run.given.get("weight"))
    is_moved = source is None or run.hidden(source) is not None
    # A copy of a large embedding table would take longer than the model.
    one = torch.zeros([1] * result.dim(), dtype=torch.bool, device=result.device)
    mask = moved(run, result) if is_moved else one
    chosen = run.given.get("index", run.given.get("indices"))
    if isinstance(chosen, Tensor):
        by = run.hidden(chosen)
        if by is None:
            return mask
        if by.dim() == mask.dim():
            return mask | by  # gather
        dim = run.given.get("dim", 0) % mask.dim()
        behind = mask.dim() - dim - by.dim()
        return mask | by.view(*by.shape, *[1] * behind)
    return mask | _by_indices(run, chosen, mask)


def _by_indices(run: Executed, indices: Any, mask: Tensor) -> Tensor:
    """Returns the hidden indices of `x[i, :, j]` in the layout of its result."""
    places = [n for n, index in enumerate(indices) if index is not None]
    given = [indices[n] for n in places]
    masks = [hidden for index in given if (hidden := run.hidden(index)) is not None]
    if not masks or any(index.dtype == torch.bool for index in given):
        return torch.zeros_like(mask)
    chosen = torch.broadcast_shapes(*(index.shape for index in given))
    total = functools.reduce(torch.logical_or, masks).expand(chosen)
    ahead = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    return total.reshape(*chosen, *[1] * (mask.dim() - ahead - len(chosen)))


def reordered(run: Executed, result: Tensor) -> Tensor | None:
    """Hides hidden elements of `topk` and `sort`, and their indices."""
    x, places = run.given["self"], run.results[1]
    mask = run.hidden(x)
    return None if mask is None else mask.expand(x.shape).gather(run.given["dim"], places)


def pooled(run: Executed, result: Tensor) -> Tensor:
    """Hides an element if all elements it is pooled or interpolated from are hidden."""
    return run.rerun(lambda x: 1 - run.number(x)) <= 0


def product(run: Executed, result: Tensor) -> Tensor | None:
    """Hides rows of the first matrix, and columns of the second one, that are entirely hidden."""
    second = "batch2" if "batch2" in run.given else "mat2"
    first = next(name for name in ("batch1", "mat1", "self") if name in run.given)
    rows, columns = run.hidden(run.given[first]), run.hidden(run.given[second])
    masks = [] if rows is None else [rows.all(-1, keepdim=True)]
    masks += [] if columns is None else [columns.all(-2, keepdim=True)]
    return functools.reduce(torch.logical_or, masks) if masks else None


def _convolved(run: Executed, result: Tensor) -> Tensor | None:
    """Hides places whose window is entirely hidden, for all channels."""
    x, weight = run.given["input"], run.given["weight"]
    if run.hidden(x) is None:
        return None
    visible = (1 - run.number(x)).amax(1, keepdim=True)
    ones = torch.ones(1, 1, *weight.shape[2:], device=x.device)
    names = ("stride", "padding", "dilation", "transposed", "output_padding")
    touched: Tensor = aten.convolution(visible, ones, None, *(run.given[name] for name in names), 1)
    return touched <= 0


def attended(run: Executed, result: Tensor) -> Tensor | None:
    """Hides the results of hidden queries."""
    mask = run.hidden(run.given["query"])
    return None if mask is None else mask.all(-1, keepdim=True)


def reduced(run: Executed, result: Tensor) -> Tensor | None:
    """Hides an element if all elements reduced to it are hidden."""
    mask, dims = run.hidden(run.given["self"]), run.given.get("dim")
    if mask is None or dims is None or dims == []:
        return None if mask is None else mask.all()
    return mask.expand(run.given["self"].shape).all(dims, keepdim=bool(run.given["keepdim"]))


def by_shape(run: Executed, result: Tensor) -> Tensor | None:
    """Default rule: element-wise for inputs of the same shape, or row-wise.

    Operators with `keepdim` reduce. Operators that mix elements in other ways hide none.
    """
    if "keepdim" in run.given or run.func.overloadpacket in REDUCING:
        return reduced(run, result)
    known = run.hidden_inputs()
    alike = [mask for x, mask in known if x.shape == result.shape]
    if alike:
        return functools.reduce(torch.logical_or, alike)
    rows = [mask for x, mask in known if x.dim() > 1 and x.shape[:-1] == result.shape[:-1]]
    return rows[0].all(-1, keepdim=True) if rows else None


REDUCING = (aten.sum, aten.mean, aten.max, aten.min, aten.prod)
MOVING = (
    *(aten.cat, aten.stack, aten.constant_pad_nd, aten.flip, aten.roll, aten.repeat, aten.im2col),
    *(aten.copy, aten.copy_, aten.slice_scatter, aten.select_scatter, aten.masked_select),
    *(aten.scatter, aten.scatter_, aten.index_copy, aten.index_copy_),
    *(aten.index_put, aten.index_put_),
    *(aten.masked_scatter, aten.masked_scatter_, aten.reflection_pad1d, aten.replication_pad1d),
)
POOLING = ("avg_pool", "_adaptive_avg_pool", "max_pool2d", "upsample_nearest", "upsample_linear")
"""Name prefixes of operators whose results derive from neighboring elements."""
RULES: Mapping[Any, Rule] = {
    **dict.fromkeys(MOVING, moved),
    **dict.fromkeys((aten.scatter_add, aten.scatter_add_), summed),
    **dict.fromkeys((aten.index_add, aten.index_add_), summed),
    **dict.fromkeys((aten.gather, aten.index_select, aten.index, aten.embedding), looked_up),
    **dict.fromkeys((aten.topk, aten.sort), reordered),
    **dict.fromkeys((aten.mm, aten.bmm, aten.addmm, aten.baddbmm), product),
    **dict.fromkeys((aten.fill_, aten.zero_, aten.zeros_like, aten.ones_like), nothing),
    **dict.fromkeys((aten.empty_like, aten.full_like, aten.new_zeros, aten.new_ones), nothing),
    **dict.fromkeys((aten.new_empty, aten.new_full), nothing),
    aten.convolution: _convolved,
}
"""Rules by overload packet; see `get_rule` for others."""


def get_rule(func: Any) -> Rule:
    """Returns the rule of an overload."""
    rule = RULES.get(func.overloadpacket)
    if rule is not None:
        return rule
    name = func.overloadpacket.__name__
    if name.startswith("_scaled_dot_product"):
        return attended
    if name.startswith(POOLING):
        return pooled
    return elementwise if torch.Tag.pointwise in func.tags else by_shape
