"""Names in files of a transformers model's layers, which differ from its paths for experts.

Files of mixtures have a matrix for each expert (`experts.3.up_proj`), and other names than the
model in some architectures (`block_sparse_moe.gate`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.joined import joined_names
from chop.captured.layers.expert_linear import ExpertLinear, stacked_shape, stacks_transposed
from chop.captured.layers.experts import matrices_by_parameter
from chop.export.foreign.expressions import EXPRESSION
from chop.ir.huggingface.conversions import EXPERT
from chop.nn.packed import PackedOperator
from chop.private.modules import own_children, own_parameters
from chop.private.transformers_api import tensors_in_files

WEIGHT = ".weight"


def expert_rows(model: nn.Module) -> dict[str, dict[str, tuple[int, int]]]:
    """Returns the modules in files that each layer of all experts consists of.

    Layers that files do not store as one matrix per expert are missing.

    Args:
        model: transformers model with `FusedExperts`.
    Returns: path of the layer -> path of the module in files -> first row, and row after the last.
    """
    numbers, starts = dict[str, Tensor](), dict[int, str]()
    total = 0
    for parameter, path, layer in _expert_layers(model):
        if layer.bias is not None or stacks_transposed(layer):
            continue
        count = layer.num_experts * layer.out_features
        # Each row has its number in the place of its values, which conversions move.
        rows = torch.arange(total, total + count).view(layer.num_experts, -1, 1)
        numbers[parameter], starts[total] = rows, path
        total += count
    modules: dict[str, dict[str, tuple[int, int]]] = {}
    for name, moved in tensors_in_files(model, numbers).items():
        rows = moved.flatten()
        first, last = int(rows[0]), int(rows[-1])
        if moved.ndim == 2 and torch.equal(rows, torch.arange(first, last + 1)):
            start = max(x for x in starts if x <= first)
            own = modules.setdefault(starts[start], {})
            own[name.removesuffix(WEIGHT)] = first - start, last + 1 - start
    return modules


def _expert_layers(model: nn.Module) -> Iterator[tuple[str, str, ExpertLinear]]:
    """Yields parameter of the original model, path and layer of the layers of all experts."""
    for owner, module in model.named_modules():
        for name, parts in joined_names(module).items():
            child, _, operand = parts[0].rpartition(".")
            layer = own_children(module).get(child)
            if isinstance(layer, ExpertLinear) and operand == "weight":
                yield f"{owner}.{name}", f"{owner}.{child}", layer


def list_targets(paths: Iterable[str]) -> list[str]:
    """Returns modules as `config_groups` and `ignore` name them: by path, or by an expression.

    All experts of a layer have one expression, because engines look them up by other names than
    those in files.

    >>> list_targets(["lm_head", "layers.3.mlp.experts.0.w1", "layers.3.mlp.experts.1.w3"])
    ['lm_head', 're:layers\\\\.3\\\\.mlp\\\\.experts\\\\.\\\\d+\\\\..*']
    """
    numbers = {path: EXPERT.search(path) for path in paths}
    return [
        *dict.fromkeys(
            path if x is None else f"{EXPRESSION}{re.escape(path[: x.start()])}\\d+\\..*"
            for path, x in numbers.items()
        )
    ]


def float_layers(model: Any, coded: Collection[str]) -> list[str]:
    """Returns the float layers with a matrix by path in files: linear layers, routers and experts.

    Args:
        model: transformers model with packed layers.
        coded: paths in files of the coded modules.
    """
    names = {
        f"{path}.{name}": torch.empty(weight.shape, device="meta")
        for path, module in model.named_modules(remove_duplicate=False)
        for name, weight in _matrices(module).items()
        if path not in coded
    }
    for parameter, _, layer in _expert_layers(model):
        if not isinstance(layer, PackedOperator):
            names[parameter] = torch.empty(stacked_shape(layer) or (), device="meta")
    return [name.removesuffix(WEIGHT) for name in tensors_in_files(model, names)]


def _matrices(module: nn.Module) -> dict[str, Tensor]:
    """Returns the matrices of a linear layer, a router, or float experts."""
    own = {name: x for name, x in own_parameters(module).items() if x is not None}
    experts = matrices_by_parameter(module)
    if experts:
        return {name: own[name] for name in experts}
    if isinstance(module, ExpertLinear):  # in files under other names; see `_expert_layers`
        return {}
    has_matrix = "weight" in own and own["weight"].ndim == 2
    return {"weight": own["weight"]} if has_matrix and not isinstance(module, nn.Embedding) else {}
