"""Weights of two bits without calibration, beside torchao, on small networks for digits.

    python benchmarks/two_bits.py                       # four networks, five seeds
    python benchmarks/two_bits.py --nets mlp --seeds 10 --width 3

Weights of linear layers and convolutions are rounded, each row of outputs in groups; inputs and
biases are not. Bits are stored bits per weight, scales and zero points counted. torchao's groups
are whole rows where a row is no multiple of them. Tried with torchao 0.18, which takes a package
of its own: `pip install --no-deps --target FOLDER torchao`, and `PYTHONPATH=FOLDER`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from chop.base.tables import markdown_table
from chop.formats import parse_format_string

FORMATS = (
    "scale_integer:width={}:granularity=channel",
    "mxint:width={}",
    "group_integer:width={}:group_size=64",
    "group_integer:width={}",
    "group_affine:width={}:group_size=4096",
    "group_affine:width={}:group_size=64",
)
SCALE_BITS = 16
Rounding = Callable[[Tensor], tuple[Tensor, float]]
"""(rows, columns) -> the rounded matrix, and bits per weight."""
Rows = tuple[Tensor, Tensor, Tensor, Tensor]


class Convolutions(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.linear, self.head = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of (N, 64) pixels."""
        x = self.conv2(self.conv1(x.view(-1, 1, 8, 8)).relu()).relu()
        logits: Tensor = self.head(self.linear(F.max_pool2d(x, 2).flatten(1)).relu())
        return logits


class Transformer(nn.Module):
    """One encoder layer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Linear(8, 64), nn.Linear(64, 10)
        self.places = nn.Parameter(torch.randn(1, 8, 64) / 10)
        names = ("query", "key", "value", "out")
        self.attention = nn.ModuleDict({name: nn.Linear(64, 64) for name in names})
        self.wide, self.narrow = nn.Linear(64, 128), nn.Linear(128, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64), nn.LayerNorm(64)])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of (N, 64) pixels."""
        x = self.rows(x.view(-1, 8, 8)) + self.places
        y = self.norms[0](x)
        q, k, v = (
            self.attention[name](y).unflatten(-1, (4, 16)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.attention["out"](y)
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        logits: Tensor = self.head(x.mean(1))
        return logits


def _perceptron(*sizes: int) -> nn.Module:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(x for layer in layers[:-1] for x in (layer, nn.ReLU())), layers[-1])


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: _perceptron(64, 64, 64, 10),
    "wide": lambda: _perceptron(64, 128, 10),
    "cnn": Convolutions,
    "transformer": Transformer,
}


def digits_rows(seed: int) -> Rows:
    """Training and test images, then their labels."""
    digits = load_digits()
    split = train_test_split(
        digits.data / 16, digits.target, test_size=0.4, random_state=seed, stratify=digits.target
    )
    x, x_test, y, y_test = (torch.as_tensor(part) for part in split)
    return x.float(), x_test.float(), y, y_test


def trained(net: str, rows: Rows, seed: int) -> nn.Module:
    """A network after 40 epochs of Adam."""
    x, _, y, _ = rows
    torch.manual_seed(seed)
    model = NETS[net]()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def roundings(width: int) -> Iterator[tuple[str, Rounding]]:
    """Ours, then torchao's where it is installed."""
    for text in FORMATS:
        number_format = parse_format_string(text.format(width))

        def ours(weight: Tensor, chosen: Any = number_format) -> tuple[Tensor, float]:
            return chosen.round(weight), chosen.bits(weight.shape)

        yield text.format(width), ours
    try:
        from torchao.quantization import granularity
        from torchao.quantization.quant_primitives import MappingType as Mapping
    except ImportError as error:
        print(f"torchao: not installed ({error}).")
        return
    settings = [(Mapping.SYMMETRIC, "affine"), (Mapping.ASYMMETRIC, "affine")]
    for group in (None, 64, 32):
        for mapping, algorithm in (*settings, (Mapping.SYMMETRIC, "hqq_scale_only")):
            place = granularity.PerAxis(0) if group is None else granularity.PerGroup(group)
            name = "HQQ" if algorithm != "affine" else mapping.name.lower()
            label = f"torchao, {name}, {'rows' if group is None else f'groups of {group}'}"
            yield label, _torchao(width, group, place, mapping, algorithm)


def _torchao(width: int, group: int | None, place: Any, mapping: Any, algorithm: str) -> Rounding:
    from torchao.quantization import IntxWeightOnlyConfig, granularity, quantize_

    def rounding(weight: Tensor) -> tuple[Tensor, float]:
        outputs, inputs = weight.shape
        is_cut = group is not None and inputs % group == 0
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight.data = weight.clone()
        model = nn.Sequential(layer)
        config = IntxWeightOnlyConfig(
            weight_dtype=getattr(torch, f"int{width}"),
            granularity=place if is_cut else granularity.PerAxis(0),
            mapping_type=mapping,
            scale_dtype=torch.bfloat16,
            intx_choose_qparams_algorithm=algorithm,
        )
        quantize_(model, config)
        zero_bits = width if mapping.name == "ASYMMETRIC" else 0
        length = group if group is not None and is_cut else inputs
        return model[0].weight.dequantize().float(), width + (SCALE_BITS + zero_bits) / length

    return rounding


def rounded(model: nn.Module, rounding: Rounding) -> tuple[nn.Module, float]:
    """A copy with rounded weights, and their bits."""
    model, bits, count = copy.deepcopy(model), 0.0, 0
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight = layer.weight.detach()
            values, per_weight = rounding(weight.flatten(1))
            layer.weight.data = values.view_as(weight)
            bits, count = bits + per_weight * weight.numel(), count + weight.numel()
    return model, bits / count


@torch.no_grad()
def accuracy(model: nn.Module, rows: Rows) -> float:
    """Per cent of the test images."""
    return 100 * (model(rows[1]).argmax(1) == rows[3]).double().mean().item()


def main() -> None:
    """Prints one table: the mean accuracy over seeds, by network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--width", type=int, default=2)
    args = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for net in args.nets.split(","):
        for seed in range(args.seeds):
            rows = digits_rows(seed)
            model = trained(net, rows, seed)
            results.setdefault("float", {}).setdefault(net, []).append(accuracy(model, rows))
            for name, rounding in roundings(args.width):
                copied, bits = rounded(model, rounding)
                numbers = results.setdefault(name, {})
                numbers.setdefault(net, []).append(accuracy(copied, rows))
                numbers.setdefault("bits", []).append(bits)
    print(markdown_table([_row(name, numbers) for name, numbers in results.items()]))


def _row(name: str, numbers: dict[str, list[float]]) -> dict[str, str]:
    bits = numbers.pop("bits", [32.0])
    means = {net: statistics.fmean(values) for net, values in numbers.items()}
    row = {"weights": name, "bits": f"{statistics.fmean(bits):.2f}"}
    row |= {net: f"{mean:.1f}" for net, mean in means.items()}
    return row | {"mean": f"{statistics.fmean(means.values()):.1f}"}


if __name__ == "__main__":
    main()
