"""Models of many dtypes, devices and layouts: autocast, complex, sparse, integers, FFT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases, Inputs

CASES = case = Cases()


def integers(b: int) -> Inputs:
    return {"x": torch.randint(0, 10, (b, WIDTH))}


@case("equal")
class FollowsDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).min
        return x.masked_fill(x < 0, tiny).to(torch.float64).to(x.dtype)


@case()
class BranchOnDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.dtype == torch.float32 and x.is_floating_point() else x


@case()
class BranchOnDevice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.device.type == "cpu" and not x.is_cuda else x * 3


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH, dtype=torch.float64 if b > 3 else None)})
class OtherDtypeAtRun(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.dtype == torch.float32 else x * 3


@case("equal")
class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x)
            with torch.autocast("cpu", enabled=False):
                z = self.fc(y.float())
        return y.float() + z


@case()
class AutocastBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.is_autocast_enabled("cpu") else x


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


@case(inputs=integers)
class Int8Matmul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 127, (WIDTH, 2), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        product = x.to(torch.int32) @ self.weight.to(torch.int32)
        return product.clamp(-128, 127).to(torch.int8)


@case()
class FakeQuantize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


@case()
class QuantizePerTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8)
        return q.dequantize() + q.int_repr()


@case("equal", inputs=integers)
class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) * (x != 0)[..., None]


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


@case(inputs=integers)
class EndOfText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        return h[torch.arange(x.shape[0]), x.argmax(-1)]


@case()
class DefaultDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(1, dtype=torch.get_default_dtype())


@case()
class PromotesByScalar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0) * 2 + torch.arange(WIDTH) / 2 + torch.tensor(1.5, dtype=torch.float64)


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


@case("equal")
class Interpolates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(x[:, None], scale_factor=2, mode="nearest")
        return (
            F.adaptive_avg_pool1d(y, 3)
            + F.unfold(x[:, None, None], (1, 2)).mean((1, 2))[:, None, None]
        )


@case()
class BatchAsChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.expand(x.shape[0], 1, 2)
        return F.conv1d(x[None], w, groups=x.shape[0])
