"""Multi-head attention of torch as projection layers and `scaled_dot_product_attention`.

`nn.MultiheadAttention` passes its parameters to one opaque function. Here the projections are
layers, and the rest are torch calls.
B batch, H heads, L queries, S keys, D head size.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.captured.joined import Joined, join_in_state_dicts
from chop.captured.module_tree import STANDS_FOR
from chop.private.modules import (
    PARAMETERS,
    has_forward_hooks,
    leave_attention_fast_path,
    own_children,
    own_parameters,
    set_members,
)

PRODUCTS = "products"
"""Name of the child of a `ProjectedAttention` that computes its products instead of `attend`."""

Slices = MutableMapping[int, tuple[nn.Parameter, ...]]
"""Row slices of parameters by the parameter's `id`, which preserve sharing."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""Layers of a `ProjectedAttention` that torch's layer has no modules for."""


@dataclass(frozen=True)
class Heads:
    """Settings of the projected inputs of an attention layer.

    Attributes:
        count: number of heads.
        batch_first: inputs are (batch, time, features), not (time, batch, features).
        bias_k: (1, 1, features), a key appended to the others, or None.
        bias_v: its value.
        add_zero: append a key and a value of zeros.
    """

    count: int
    batch_first: bool
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None
    add_zero: bool = False

    def split(self, x: Tensor) -> Tensor:
        """Returns projected inputs as (B, H, time, D)."""
        parts = x.view(*x.shape[:-1], self.count, x.shape[-1] // self.count)
        return parts.transpose(1, 2) if self.batch_first else parts.permute(1, 2, 0, 3)

    def merge(self, x: Tensor) -> Tensor:
        """Concatenates the heads to (L, B, features).

        This is torch's memory layout, so that dropout draws the same numbers.
        """
        parts = x.permute(2, 0, 1, 3)
        return parts.reshape(*parts.shape[:2], -1)

    def extended(self, x: Tensor, row: Tensor | None) -> Tensor:
        """Appends the rows that the layer adds to keys or values."""
        if row is not None:
            row = row.view(1, self.count, 1, -1).expand(x.shape[0], -1, -1, -1)
            x = torch.cat([x, row], 2)
        return F.pad(x, (0, 0, 0, 1)) if self.add_zero else x

    def mask(self, attn_mask: Tensor | None, padding: Tensor | None, scores: Any) -> Tensor | None:
        """Combines the masks into one for all scores: True hides, or numbers are added.

        Args:
            attn_mask: (L, S) or (B * H, L, S).
            padding: (B, S).
            scores: the sizes (B, L, S), without the keys that the layer appends.
        """
        batch, queries, keys = scores
        if attn_mask is not None:
            heads = (batch * self.count,) if attn_mask.dim() == 3 else ()
            expected = (*heads, queries, keys)
            if tuple(attn_mask.shape) != expected:
                raise RuntimeError(
                    f"expected an attn_mask of shape {expected}, got {tuple(attn_mask.shape)}"
                )
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.view(batch, self.count, queries, keys)
        if padding is not None:
            padding = padding.view(batch, 1, 1, keys)
        added = (self.bias_k is not None) + self.add_zero
        if added:
            attn_mask, padding = (
                None if mask is None else F.pad(mask, (0, added)) for mask in (attn_mask, padding)
            )
        return _joined(attn_mask, padding)


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    if not torch.is_floating_point(other):
        one, other = other, one
    if torch.is_floating_point(one):
        return one + other
    return other.masked_fill(one, -math.inf) if torch.is_floating_point(other) else one | other


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float,
    training: bool,
    is_causal: bool,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Returns the context of each query, and the attention weights if requested.

    Without dropout the weights are a separate computation, which a graph drops if they are unused.

    Args:
        query: (B, H, L, D).
        key: (B, H, S, D).
        value: (B, H, S, D).
        mask: True hides, or numbers are added to the scores.
        dropout: probability that a weight is dropped in training.
        training: whether the layer is in training.
        is_causal: hides the keys after each query.
        need_weights: whether to return the weights.
    """
    hidden = mask is not None and not torch.is_floating_point(mask)
    weights = None
    if need_weights:
        scaled = torch.mul(query, math.sqrt(1 / query.shape[-1]))
        scores = torch.matmul(scaled, key.transpose(-2, -1))
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf) if hidden else torch.add(scores, mask)
        weights = torch.softmax(scores, -1)
        if dropout > 0:
            weights = F.dropout(weights, dropout, training)
            return torch.matmul(weights, value), weights
    if mask is not None and hidden:
        mask = ~mask
    p = dropout if training else 0.0
    context = F.scaled_dot_product_attention(query, key, value, mask, p, is_causal)
    return context, weights


def _hidden_as_nan(context: Tensor, mask: Tensor) -> Tensor:
    """Sets the context of queries without visible keys to NaN, as torch's layer with weights does.

    Args:
        context: (B, H, L, D).
        mask: see `attend`; its sizes broadcast to (B, H, L, S).
    """
    if torch.is_floating_point(mask):
        hidden = mask.amax(-1, keepdim=True) == -math.inf
    else:
        hidden = mask.all(-1, keepdim=True)
    return context.masked_fill(hidden, math.nan)


def _run(
    inputs: tuple[Tensor, Tensor, Tensor],
    project: tuple[Callable[[Tensor], Tensor], ...],
    heads: Heads,
    attention: Callable[..., tuple[Tensor, Tensor | None]],
    padding: Tensor | None,
    attn_mask: Tensor | None,
    average: bool,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Computes the attention of inputs with or without a batch axis."""
    batched = inputs[0].dim() == 3
    axis = 0 if heads.batch_first else 1
    if not batched:
        inputs = tuple(x.unsqueeze(axis) for x in inputs)  # type: ignore[assignment]
        padding = None if padding is None else padding.unsqueeze(0)
    if options["is_causal"] and attn_mask is None:
        raise RuntimeError("expected an attn_mask together with the hint is_causal, got none")
    for mask in (attn_mask, padding):
        # Reading `mask.dtype` in a recording would add a guard on the dtypes of inputs.
        kind = torch.bool if mask is None else torch.result_type(mask, mask)
        if kind != torch.bool and not kind.is_floating_point:
            raise RuntimeError(f"expected masks of bool or floating numbers, got {kind}")
    # As in torch, the hint replaces the mask unless another mask has to be merged with it.
    is_causal = options["is_causal"] and padding is None and not options["need_weights"]
    attn_mask = None if is_causal else attn_mask
    query, key, value = (run(x) for run, x in zip(project, inputs, strict=False))
    q, k, v = heads.split(query), heads.split(key), heads.split(value)
    mask = heads.mask(attn_mask, padding, (q.shape[0], q.shape[2], k.shape[2]))
    k, v = heads.extended(k, heads.bias_k), heads.extended(v, heads.bias_v)
    context, weights = attention(q, k, v, mask, **{**options, "is_causal": is_causal})
    if weights is not None and mask is not None:
        context = _hidden_as_nan(context, mask)
    out = project[3](heads.merge(context))
    if weights is not None and average:
        weights = weights.mean(1)
    if not batched:
        return out.squeeze(1), None if weights is None else weights.squeeze(0)
    return out.transpose(0, 1) if heads.batch_first else out, weights


class ProjectedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with layers as projections: q_proj, k_proj, v_proj and out_proj.

    It shares the memory of torch's layer and computes the same. State dicts have the same weights,
    such as `in_proj_weight`.
    """

    @classmethod
    def around(cls, module: nn.MultiheadAttention, shared: Slices) -> Self:
        """Takes over the memory, hooks, attributes and mode of a torch layer.

        Args:
            module: see `why_not_projected`.
            shared: slices of parameters; read and extended.
        """
        made = _twin_class(cls, type(module))
        twin: Any = made.__new__(made)
        nn.Module.__init__(twin)
        twin.__dict__.update({n: x for n, x in vars(module).items() if n != PARAMETERS})
        vars(twin)[STANDS_FOR] = type(module)
        packed = module.in_proj_weight is not None
        weights = (
            _slices(module.in_proj_weight, shared)
            if packed
            else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        )
        bias = module.in_proj_bias
        biases = (None,) * 3 if bias is None else _slices(bias, shared)
        layers: dict[str, nn.Module] = {
            name: _linear(weight, bias, module.training)
            for name, weight, bias in zip(PROJECTIONS, weights, biases, strict=True)
        }
        rows = {name: own_parameters(module).get(name) for name in ("bias_k", "bias_v")}
        parameters = {name: x for name, x in rows.items() if x is not None}
        set_members(twin, parameters, children={**layers, **own_children(module)})
        leave_attention_fast_path(twin)
        join_in_state_dicts(twin, _joined_names(packed, bias is not None))
        return twin  # type: ignore[no-any-return]

    def _reset_parameters(self) -> None:
        """Keeps the values that were taken over."""

    @property
    def in_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        """The weights of the three projections, if they have the same width."""
        weights = [self._modules[name].weight for name in PROJECTIONS]  # type: ignore[union-attr]
        same = self.kdim == self.embed_dim == self.vdim
        return torch.cat(weights) if same else None  # type: ignore[arg-type]

    @property
    def in_proj_bias(self) -> Tensor | None:  # type: ignore[override]
        """The biases of the three projections."""
        biases = [self._modules[name].bias for name in PROJECTIONS]  # type: ignore[union-attr]
        return None if biases[0] is None else torch.cat(biases)  # type: ignore[arg-type]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Has the arguments and results of `nn.MultiheadAttention`.

        Args:
            query: (B, L, features), (L, B, features) or (L, features).
            key: (B, S, features), (S, B, features) or (S, features).
            value: as `key`.
            key_padding_mask: (B, S) or (S): True hides, or numbers are added.
            need_weights: whether to return the attention weights.
            attn_mask: (L, S) or (B * H, L, S): True hides, or numbers are added.
            average_attn_weights: average over the heads.
            is_causal: declares `attn_mask` as causal.
        """
        layers = (*(self._modules[name] for name in PROJECTIONS), self.out_proj)
        heads = Heads(
            self.num_heads, self.batch_first, self.bias_k, self.bias_v, self.add_zero_attn
        )
        options = {
            "dropout": self.dropout,
            "training": self.training,
            "is_causal": is_causal,
            "need_weights": need_weights,
        }
        attention: Any = self._modules.get(PRODUCTS) or attend
        return _run(
            (query, key, value),
            layers,  # type: ignore[arg-type]
            heads,
            attention,
            key_padding_mask,
            attn_mask,
            average_attn_weights,
            options,
        )


def why_not_projected(module: nn.Module) -> str | None:
    """Explains why `ProjectedAttention` cannot replace a torch layer; None if it can."""
    if "forward" in vars(module) or not _forward_is_torch(type(module)):
        return "has a forward of its own"
    out = module.out_proj
    assert isinstance(out, nn.Module)
    names = {"in_proj_weight", "in_proj_bias", *(f"{name}_weight" for name in PROJECTIONS)}
    tensors = [own_parameters(module).get(name) for name in sorted(names)]
    weights = [x for x in tensors if x is not None and x.dim() == 2]
    if len(weights) not in (1, 3) or set(own_children(module)) != {"out_proj"}:
        return "computes its parameters"
    # torch reads the weight of this layer and does not call it.
    called = has_forward_hooks(out) or "forward" in vars(out)
    if type(out).forward is not nn.Linear.forward or called:
        return "has an out_proj with hooks or a forward of its own"
    return None


def _forward_is_torch(cls: type) -> bool:
    """Returns whether the forward of a class is torch's or calls it by `super().forward`."""
    for ancestor in cls.__mro__:
        if ancestor is nn.MultiheadAttention:
            return True
        names = getattr(vars(ancestor).get("forward"), "__code__", None)
        if names is not None and not {"super", "forward"} <= {*names.co_names}:
            return False
    return False


def _twin_class(base: type[Any], cls: type[Any]) -> Any:
    """Returns a class with the forward of `cls`, whose `super().forward` is ours."""
    if cls.forward is nn.MultiheadAttention.forward:
        return base
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__})


def _joined_names(packed: bool, has_bias: bool) -> Joined:
    weights = tuple(f"{name}.weight" for name in PROJECTIONS)
    joined: dict[str, tuple[str, ...]] = (
        {"in_proj_weight": weights}
        if packed
        else {f"{name}_weight": (f"{name}.weight",) for name in PROJECTIONS}
    )
    biases = {"in_proj_bias": tuple(f"{name}.bias" for name in PROJECTIONS)}
    return {**joined, **biases} if has_bias else joined


def _slices(parameter: nn.Parameter, shared: Slices) -> tuple[nn.Parameter, ...]:
    if id(parameter) not in shared:
        rows, trains = parameter.detach().chunk(3), parameter.requires_grad
        shared[id(parameter)] = tuple(nn.Parameter(x, trains) for x in rows)
    return shared[id(parameter)]


def _linear(weight: nn.Parameter, bias: nn.Parameter | None, training: bool) -> nn.Linear:
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape
    own_parameters(layer).update(weight=weight, bias=bias)
    layer.training = training
    return layer


_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def bound_call(args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of `F.multi_head_attention_forward`; None for static keys or values."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    return given if given["static_k"] is None and given["static_v"] is None else None


def multi_head_attention(given: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Computes `F.multi_head_attention_forward` by torch calls.

    Args:
        given: see `bound_call`.
    """
    if given["use_separate_proj_weight"]:
        weights = [given[f"{name}_weight"] for name in PROJECTIONS]
    else:
        weights = given["in_proj_weight"].chunk(3)
    bias = given["in_proj_bias"]
    biases: Any = (None,) * 3 if bias is None else bias.chunk(3)
    pairs = [
        *zip(weights, biases, strict=True),
        (given["out_proj_weight"], given["out_proj_bias"]),
    ]
    rows = (given["bias_k"], given["bias_v"], given["add_zero_attn"])
    return _run(
        (given["query"], given["key"], given["value"]),
        tuple(functools.partial(F.linear, weight=w, bias=b) for w, b in pairs),
        Heads(given["num_heads"], False, *rows),
        attend,
        given["key_padding_mask"],
        given["attn_mask"],
        given["average_attn_weights"],
        {
            "dropout": given["dropout_p"],
            "training": given["training"],
            "is_causal": given["is_causal"],
            "need_weights": given["need_weights"],
        },
    )
