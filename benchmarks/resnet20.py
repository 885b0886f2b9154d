"""The sweeps on a real vision model: ResNet-20 and CIFAR-10 photographs.

    python benchmarks/resnet20.py --data FOLDER --out runs/resnet20

FOLDER holds `resnet-cifar10/resnet20.safetensors` and `cifar10-jpeg/{test,train10k}.parquet`. Both
sweeps continue where they were after being killed. `--help` lists the rest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from chop.actions.sweep.prune import PruneSweepConfig, prune_sweep
from chop.actions.sweep.quantize import QuantizeSweepConfig, quantize_sweep
from chop.train import Rows
from chop.workloads.workload import Workload

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STAGES = ((16, 1), (32, 2), (64, 2))
BLOCKS_PER_STAGE = 3
TUNING_LR = 1e-3


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut.

    Where the shape changes the shortcut takes every other pixel and pads channels with zeros:
    option A of He et al. 2015, arXiv:1512.03385, section 4.2.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.stride, self.added = stride, channels_out - channels_in

    def forward(self, x_NCHW: Tensor) -> Tensor:  # noqa: N803 (shape suffix)
        """(N, C, H, W) to (N, channels_out, H / stride, W / stride)."""
        y = F.relu(self.bn1(self.conv1(x_NCHW)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1 or self.added:
            half = self.added // 2
            x_NCHW = F.pad(x_NCHW[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(y + x_NCHW)


class ResNet20(nn.Module):
    """The 20-layer residual network for 32x32 pictures of He et al. 2015."""

    def __init__(self, num_labels: int = 10) -> None:
        super().__init__()
        channels = STAGES[0][0]
        self.conv1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        for number, (width, stride) in enumerate(STAGES, 1):
            blocks = [Block(channels, width, stride)]
            blocks += [Block(width, width, 1) for _ in range(BLOCKS_PER_STAGE - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            channels = width
        self.linear = nn.Linear(channels, num_labels)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(N, 3, 32, 32) to logits (N, num_labels)."""
        y = F.relu(self.bn1(self.conv1(pixel_values)))
        y = self.layer3(self.layer2(self.layer1(y)))
        return self.linear(y.mean((2, 3)))


def read_pictures(path: Path, limit: int | None) -> Rows:
    """Normalized pictures (N, 3, 32, 32) and their classes."""
    from datasets import load_dataset

    split = load_dataset("parquet", data_files=str(path), split="train").shuffle(seed=0)
    split = split if limit is None else split.select(range(min(limit, len(split))))
    label = next(name for name in ("label", "labels", "fine_label") if name in split.features)
    pictures = np.stack([np.asarray(picture.convert("RGB")) for picture in split["img"]])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    scaled = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return Rows({"pixel_values": scaled}, torch.tensor(split[label]))


def main() -> None:
    """Runs both sweeps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/resnet20"))
    parser.add_argument("--limit", type=int, default=2000, help="test pictures")
    parser.add_argument("--train-limit", type=int, help="training pictures")
    parser.add_argument("--widths", default="3:6:1,8")
    parser.add_argument("--frac", default="half,auto")
    parser.add_argument("--sparsity", default="0.1:0.9:0.1")
    parser.add_argument("--integer-bits", help="sweeps these instead of widths, then fraction bits")
    parser.add_argument("--fraction-bits", default="2:8:2")
    parser.add_argument("--activation", default="", help="methods that prune inputs too, by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1, help="of QAT and of fine-tuning")
    args = parser.parse_args()

    model = ResNet20().eval()
    model.load_state_dict(load_file(args.data / "resnet-cifar10" / "resnet20.safetensors"))
    pictures = args.data / "cifar10-jpeg"
    train = read_pictures(pictures / "train10k.parquet", args.train_limit)
    test = read_pictures(pictures / "test.parquet", args.limit)
    here = torch.device("cpu")
    workload = Workload(model, "ResNet-20", "CIFAR-10", train, test, here, 1, TUNING_LR)
    split = {"integer_bits": args.integer_bits, "fraction_bits": args.fraction_bits}
    chosen = split if args.integer_bits else {"widths": args.widths, "frac": args.frac}
    shared = {"seeds": args.seeds}
    widths = QuantizeSweepConfig(
        out=args.out / "quantize", qat_epochs=args.epochs, **chosen, **shared
    )
    quantize_sweep(widths, workload)
    shares = PruneSweepConfig(
        out=args.out / "prune",
        sparsity=args.sparsity,
        finetune_epochs=args.epochs,
        activation=tuple(args.activation.split(",")) if args.activation else (),
        **shared,
    )
    prune_sweep(shares, workload)


if __name__ == "__main__":
    main()
