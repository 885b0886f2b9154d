"""Small networks that have one of each operator or so, for trying out passes; by MASE's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chop.aliases import alias_modules
from chop.models.plain import MLP, PlainModel

CHANNELS = (3, 8, 16, 32, 64)


class ToyNet(MLP):
    """Three linear layers with ReLU between them, `toy` of the catalogue.

    Args:
        image_size: (channels, height, width).
        num_classes: classes.
        hidden: features of both hidden layers.
    """

    def __init__(self, image_size: Sequence[int], num_classes: int, hidden: int = 100) -> None:
        super().__init__(image_size, (hidden, hidden, num_classes))


class ToyConvNet(PlainModel):
    """Two 2-D and two 1-D convolutions, each with ReLU, pooling, and a linear layer.

    Args:
        num_classes: classes.
        channels: of the input and of the four convolutions.
        side: height and width of the example input; others work.
    """

    def __init__(
        self, num_classes: int, channels: Sequence[int] = CHANNELS, side: int = 32
    ) -> None:
        super().__init__((channels[0], side, side))
        kinds = (nn.Conv2d, nn.Conv2d, nn.Conv1d, nn.Conv1d)
        for number, kind in enumerate(kinds, 1):
            layer = kind(channels[number - 1], channels[number], kernel_size=3, padding=1)
            self.add_module(f"block_{number}", nn.Sequential(layer, nn.ReLU()))
        self.maxpool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.linear = nn.Linear(channels[4], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, height, width) to logits (B, classes)."""
        x = self.block_2(self.maxpool(self.block_1(x)))
        x = self.block_4(self.block_3(x.flatten(2)))
        return self.linear(self.avgpool(x).flatten(1))


class ToyCustomFnNet(PlainModel):
    """Sums, products and differences with tensors and numbers, both convolutions, `matmul`, `bmm`.

    Args:
        image_size: (channels, height, width).
        num_classes: classes.
        batch_size: MASE's model has one; here it may be called with any.
    """

    WIDTH = 100
    SIDE = 10

    def __init__(self, image_size: Sequence[int], num_classes: int, batch_size: int = 1) -> None:
        super().__init__(image_size)
        del batch_size
        features = torch.Size(image_size).numel()
        self.seq_blocks = nn.Sequential(nn.Linear(features, self.WIDTH), nn.ReLU())
        self.conv2d = nn.Conv2d(1, 4, 3, padding="same")
        self.adaptive_pool = nn.AdaptiveAvgPool2d((1, 1))
        self.conv1d = nn.Conv1d(4, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) to logits (B, classes)."""
        x = torch.relu(self.seq_blocks(x.flatten(1)))
        x = (x + x + 2) * x * 2
        x = x - x.mean(1, keepdim=True) - 2
        x = self.conv2d(x.view(-1, 1, self.SIDE, self.SIDE))
        x = self.conv1d(self.adaptive_pool(x).flatten(2)).flatten(1)
        gram = torch.matmul(x.unsqueeze(2), x.unsqueeze(1))
        return x + torch.bmm(gram, x.unsqueeze(2)).squeeze(2)


alias_modules(__name__, "toy toy_custom_fn")
alias_modules(__name__, "toys.toy toys.toy_custom_fn", below="chop.models")
