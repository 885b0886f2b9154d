"""Models of many dtypes, devices and layouts: autocast, complex, sparse, integers, FFT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases, Inputs

CASES = case = Cases()


def integers(b: int) -> Inputs:
    return {"x": torch.randint(0, 10, (b, WIDTH))}


@case()
class BranchOnDevice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.device.type == "cpu" and not x.is_cuda else x * 3


@case("equal")
class HalfInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.bfloat16()).type_as(x)


@case("equal")
class FourierTransform(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1])


@case()
class FourierOverBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x, dim=0).abs()


@case()
class Complex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        z = torch.complex(x, x.flip(1)) * 1j
        return torch.view_as_real(z).sum(-1) + z.conj().real + z.imag


@case()
class ComplexRotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        turn = torch.polar(torch.ones(2), torch.arange(2.0))
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(x.shape[0], 2, 2))
        return torch.view_as_real(z * self.turn).flatten(1)


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH, dtype=torch.complex64)})
class ComplexInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs() + x.angle() if x.is_complex() else x


@case()
class SparseBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(WIDTH).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, x.t()).t()


@case()
class SparseInside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().to_sparse().to_dense()


@case(inputs=lambda b: {"x": torch.eye(b, WIDTH).to_sparse()})
class SparseInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to_dense() * 2


@case("equal", inputs=integers)
class IntegerArithmetic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x // 3) * 2 + x % 4 - (x >> 1 & 1) + (~x).clamp(min=-3)


@case()
class QuantizePerTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8)
        return q.dequantize() + q.int_repr()


@case(inputs=integers)
class EmbeddingRenormalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, max_norm=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


@case(inputs=integers)
class OneHotCounts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(x, 10).sum(1).float()


@case(inputs=integers)
class OneHotUnbounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(x)


@case(inputs=integers)
class BinCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bincount(x.flatten(), minlength=10)


@case()
class Bits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach().view(torch.int32) & 0xFF


@case()
class ToNumpyOnly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(x.detach().cpu().numpy().cumsum(1))


@case()
class PackedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x[..., None], [WIDTH] * x.shape[0], batch_first=True
        )
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


@case("equal")
class LstmState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(1, x.shape[0], 2)
        return self.rnn(x[..., None], (h, h))[1][1][-1]


@case()
class BatchAsChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.expand(x.shape[0], 1, 2)
        return F.conv1d(x[None], w, groups=x.shape[0])
