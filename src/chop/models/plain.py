"""Plain networks with one tensor as input and logits as output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from chop.config import with_checked_arguments

TOY_CHANNELS = (3, 8, 16, 32, 64)
"""Channels of the input and of the four convolutions of `ToyConvNet`."""


class _PlainModel(nn.Module):
    """Base of the plain models.

    Args:
        input_shape: shape of one row.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Three random rows; a batch size of 1 could be mistaken for a constant."""
        return {"x": torch.randn(3, *self.input_shape)}


class MLP(_PlainModel):
    """Multilayer perceptron with ReLU; images are flattened.

    Args:
        input_shape: shape of one row.
        widths: features of each hidden layer, and number of classes.
    """

    def __init__(self, input_shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__(input_shape)
        layers: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise((math.prod(input_shape), *widths)):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.seq_blocks = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, ...) to logits (B, classes)."""
        logits: Tensor = self.seq_blocks(x.flatten(1))
        return logits


class JetTagger(_PlainModel):
    """Linear layers, each with batch norm and ReLU, for classifying jets at the LHC.

    Source: task: J. Duarte et al., arXiv:1804.06913, section 2; larger widths: Y. Umuroglu et al.,
    LogicNets, arXiv:2004.03021.

    Args:
        num_features: features of one row.
        num_classes: number of classes.
        hidden: features of each hidden layer.
    """

    @with_checked_arguments
    def __init__(
        self, num_features: int = 16, num_classes: int = 5, hidden: Sequence[int] = ()
    ) -> None:
        super().__init__((num_features,))
        layers: list[nn.Module] = []
        for width, after in itertools.pairwise((num_features, *hidden, num_classes)):
            layers += [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, after)]
        self.seq_blocks = nn.Sequential(*layers, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, features) to logits (B, classes)."""
        logits: Tensor = self.seq_blocks(x)
        return logits


class VGG7(_PlainModel):
    """Six 3 x 3 convolutions in three pairs, each pair followed by pooling, and two linear layers.

    Source: F. Li et al., Ternary Weight Networks, arXiv:1605.04711, section 3.1: 2x(128-C3) + MP2
    + 2x(256-C3) + MP2 + 2x(512-C3) + MP2 + 1024-FC.

    Args:
        image_size: (channels, height, width); sides of at least 8.
        num_classes: number of classes.
    """

    @with_checked_arguments
    def __init__(
        self, image_size: tuple[int, int, int] = (3, 32, 32), num_classes: int = 10
    ) -> None:
        super().__init__(image_size)
        channels, height, width = image_size
        self.feature_layers = nn.Sequential(*_vgg_layers(channels, (128, 256, 512)))
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(512 * (height // 8) * (width // 8), 1024),
            nn.ReLU(),
            nn.Linear(1024, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, channels, height, width) to logits (B, classes)."""
        logits: Tensor = self.classifier(self.feature_layers(x))
        return logits


class ToyNet(MLP):
    """Three linear layers with ReLU between them, `toy` in the catalogue.

    Args:
        image_size: (channels, height, width).
        num_classes: number of classes.
        hidden: features of both hidden layers.
    """

    @with_checked_arguments
    def __init__(self, image_size: Sequence[int], num_classes: int, hidden: int = 100) -> None:
        super().__init__(image_size, (hidden, hidden, num_classes))


class ToyConvNet(_PlainModel):
    """Two 2-D and two 1-D convolutions, each with ReLU, pooling, and a linear layer.

    Args:
        num_classes: number of classes.
        channels: channels of the input and of the four convolutions.
        side: height and width of the example input; others work.
    """

    block_1: nn.Sequential
    block_2: nn.Sequential
    block_3: nn.Sequential
    block_4: nn.Sequential

    @with_checked_arguments
    def __init__(
        self, num_classes: int, channels: Sequence[int] = TOY_CHANNELS, side: int = 32
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
        """Maps (B, channels, height, width) to logits (B, classes)."""
        x = self.block_2(self.maxpool(self.block_1(x)))
        x = self.block_4(self.block_3(x.flatten(2)))
        logits: Tensor = self.linear(self.avgpool(x).flatten(1))
        return logits


class ToyCustomFnNet(_PlainModel):
    """Arithmetic with tensors and numbers, both kinds of convolution, `matmul` and `bmm`.

    Args:
        image_size: (channels, height, width).
        num_classes: number of classes.
        batch_size: ignored; MASE's model has a fixed one, and this model takes any.
    """

    WIDTH = 100
    SIDE = 10

    @with_checked_arguments
    def __init__(self, image_size: Sequence[int], num_classes: int, batch_size: int = 1) -> None:
        super().__init__(image_size)
        del batch_size
        features = torch.Size(image_size).numel()
        self.seq_blocks = nn.Sequential(nn.Linear(features, self.WIDTH), nn.ReLU())
        self.conv2d = nn.Conv2d(1, 4, 3, padding="same")
        self.adaptive_pool = nn.AdaptiveAvgPool2d((1, 1))
        self.conv1d = nn.Conv1d(4, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, ...) to logits (B, classes)."""
        x = torch.relu(self.seq_blocks(x.flatten(1)))
        x = (x + x + 2) * x * 2
        x = x - x.mean(1, keepdim=True) - 2
        x = self.conv2d(x.view(-1, 1, self.SIDE, self.SIDE))
        x = self.conv1d(self.adaptive_pool(x).flatten(2)).flatten(1)
        gram = torch.matmul(x.unsqueeze(2), x.unsqueeze(1))
        return x + torch.bmm(gram, x.unsqueeze(2)).squeeze(2)


def _vgg_layers(channels: int, widths: Sequence[int]) -> Iterator[nn.Module]:
    for width in widths:
        for width_in in (channels, width):
            yield nn.Conv2d(width_in, width, 3, padding=1)
            yield nn.BatchNorm2d(width)
            yield nn.ReLU()
        yield nn.MaxPool2d(2)
        channels = width
