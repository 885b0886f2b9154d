"""What a rotation of each group does to inputs, to weights, and to both, of four bits.

    python benchmarks/rotation_parts.py --model ./smollm2 --data FOLDER --changes found,dithered
    python benchmarks/rotation_parts.py --model ./smollm2 --data FOLDER --texts 4 --by-layer

Linear layers of the blocks are rounded to nearest, everything else is float. Printed is the KL
divergence from the same model in float, without a rotation and with one before every layer, in
blocks of a group's size.

Weights that had been rounded before lie on a grid that a rotation takes away: `dithered` adds to
each a uniform number of one step of that grid (Q4_1's: a group of 32 has 15 steps from its lowest
weight to its highest). `planted8` multiplies the gains of 4 channels of each norm by 8 and divides
the columns that read them: the same function, with channels that stand out in the inputs.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from greedy_caches import prompts
from torch import Tensor, nn

from chop.base.tables import markdown_table
from chop.data import load_dataset
from chop.formats import parse_format_string
from chop.kernels.hadamard import hadamard_transform, largest_block
from chop.models import load_model
from chop.train.evaluator import divergences

GRID = 32
GROUPS = {"mxfp4": 32, "nvfp4": 16, "mxint4": 32}
LAYERS = {
    "q, k, v": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate, up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
    "all": ("_proj",),
}
ALL = 10**6
"""Channels of a block: as many as a layer reads."""
Rounding = Callable[[Tensor], Tensor] | None


class Rounded(nn.Module):
    """A linear layer with rounded inputs and weights, both in a rotated basis."""

    def __init__(self, layer: nn.Linear, inputs: Rounding, weights: Rounding, block: int) -> None:
        super().__init__()
        self.inputs, self.block = inputs, largest_block(layer.in_features, block or 1)
        weight = hadamard_transform(layer.weight.detach().double(), self.block).float()
        self.weight = weights(weight) if weights else weight
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """The product of what is rounded."""
        x = hadamard_transform(x, self.block) if self.block > 1 else x
        return F.linear(self.inputs(x) if self.inputs else x, self.weight, self.bias)


def rounded(
    model: Any, inputs: Rounding, weights: Rounding, block: int, which: str = "all"
) -> nn.Module:
    """A copy of the model with layers rounded."""
    model = copy.deepcopy(model)
    for path, layer in list(model.model.layers.named_modules()):
        if isinstance(layer, nn.Linear) and path.endswith(LAYERS[which]):
            parent, _, name = path.rpartition(".")
            made = Rounded(layer, inputs, weights, block)
            setattr(model.model.layers.get_submodule(parent), name, made)
    return model


@torch.no_grad()
def dithered(model: Any) -> nn.Module:
    """Weights drawn anew within half a step of the grid on which they lie."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for parameter in model.model.layers.parameters():
        if parameter.dim() == 2:
            groups = parameter.unflatten(1, (-1, GRID))
            step = ((groups.amax(-1) - groups.amin(-1)) / 15).repeat_interleave(GRID, 1)
            parameter += step * (torch.rand(parameter.shape, generator=generator) - 0.5)
    return model


@torch.no_grad()
def planted(model: Any, factor: float, channels: int = 4) -> nn.Module:
    """The same function with channels of each norm that stand out."""
    model = copy.deepcopy(model)
    for index, block in enumerate(model.model.layers):
        generator = torch.Generator().manual_seed(index)
        attention, mlp = block.self_attn, block.mlp
        for norm, readers in (
            (block.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (block.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            chosen = torch.randperm(len(norm.weight), generator=generator)[:channels]
            norm.weight[chosen] *= factor
            for reader in readers:
                reader.weight[:, chosen] /= factor
    return model


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "found": lambda model: model,
    "dithered": dithered,
    "planted8": lambda model: planted(model, 8),
    "planted32": lambda model: planted(model, 32),
}


@torch.no_grad()
def log_probabilities(model: Any, ids: Tensor) -> Tensor:
    """(texts, tokens - 1, words)."""
    parts = [model(input_ids=x, use_cache=False).logits[:, :-1] for x in ids.split(2)]
    return torch.cat([x.log_softmax(-1) for x in parts])


def divergence(exact: Tensor, model: nn.Module, ids: Tensor) -> float:
    """KL divergence from the exact probabilities, in nats, of a token."""
    parts = zip(exact.split(2), ids.split(2), strict=True)
    pairs = ((p.flatten(0, 1), log_probabilities(model, x).flatten(0, 1)) for p, x in parts)
    found = [divergences(*pair) for pair in pairs]
    return torch.cat(found).mean().item()


def cases(args: argparse.Namespace, name: str) -> list[tuple[str, Rounding, Rounding, str]]:
    """What is rounded: its title, the format of inputs, that of weights, and in which layers."""
    four, eight = parse_format_string(name), parse_format_string("mxint8")
    if args.by_layer:
        return [(f"inputs of {which}", four, None, which) for which in LAYERS if which != "all"]
    return [
        ("inputs", four, None, "all"),
        ("weights", None, four, "all"),
        ("both", four, four, "all"),
        ("inputs, weights in mxint8", four, eight, "all"),
    ]


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="./smollm2", help="a folder, of Llama's architecture")
    parser.add_argument("--data", type=Path, required=True, help="folder with test texts")
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--formats", default=",".join(GROUPS))
    parser.add_argument("--changes", default="found", help=",".join(CHANGES))
    parser.add_argument("--by-layer", action="store_true", help="inputs, one type of layer alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = load_dataset(args.data, labeled=False)["test"]["text"]
    ids = prompts(texts, args.model, args.texts, args.tokens)
    base = load_model(args.model, task="text-generation").eval()
    rows = []
    for change in args.changes.split(","):
        model = CHANGES[change](base)
        exact = log_probabilities(model, ids)
        for name in args.formats.split(","):
            for title, inputs, weights, which in cases(args, name):
                sizes = {"no rotation": 0, "blocks": GROUPS[name], "all channels": ALL}
                found = {
                    column: divergence(exact, rounded(model, inputs, weights, size, which), ids)
                    for column, size in sizes.items()
                }
                plain = found["no rotation"]
                shown = {column: f"{x:.3f} ({x / plain:.2f})" for column, x in found.items()}
                rows.append({"model": change, "format": name, "rounded": title, **shown})
                print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
