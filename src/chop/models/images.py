"""Plain PyTorch classifiers of 8 x 8 images with the interface of Hugging Face models.

Shapes: B images, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput


def _answer(logits: Tensor, labels: Tensor | None) -> ImageClassifierOutput:
    loss = None if labels is None else F.cross_entropy(logits, labels)
    return ImageClassifierOutput(loss=loss, logits=logits)


class _DigitsClassifier(nn.Module):
    """Base of the plain classifiers with an example input, as in Hugging Face models."""

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Three random images; a batch size of 1 could be mistaken for a constant."""
        return {"pixel_values": torch.rand(3, 1, 8, 8) * 2 - 1}


class DigitsMLP(_DigitsClassifier):
    """Multilayer perceptron with three linear layers, 64-64-64-C."""

    def __init__(self, num_labels: int = 10):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.act1 = nn.ReLU()
        self.fc2 = nn.Linear(64, 64)
        self.act2 = nn.ReLU()
        self.fc3 = nn.Linear(64, num_labels)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Classifies images.

        Args:
            pixel_values: (B, 1, 8, 8), floating point.
            labels: (B,), int64; adds the mean cross entropy as `loss`.
        Returns: `.logits` (B, C), and `.loss` or None.
        """
        x = self.act1(self.fc1(pixel_values.flatten(1)))
        return _answer(self.fc3(self.act2(self.fc2(x))), labels)


class DigitsCNN(_DigitsClassifier):
    """Two convolutions with batch norm, a stride of two after the first, one linear layer."""

    def __init__(self, num_labels: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.relu2 = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(32 * 4 * 4, num_labels)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Classifies images with the signature of `DigitsMLP.forward`."""
        x = self.relu1(self.bn1(self.conv1(pixel_values)))
        x = self.relu2(self.bn2(self.conv2(x)))
        return _answer(self.fc(self.flatten(x)), labels)
