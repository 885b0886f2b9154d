"""Peers of decoder compression on CPUs: other dtypes, torch quantization, and torchao."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.huggingface.cache_names import cache_name, find_cache
from chop.ir.huggingface.native_decoding import decode_natively

PREFILL, DECODE = "prefill", "decode"


class Contender(ABC):
    """Decoder to measure.

    Args:
        name: name in tables.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Returns the size of the saved parameters, shared ones once."""

    @abstractmethod
    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Returns the function to time.

        Args:
            kind: "prefill" reads prompts into a new cache. "decode" reads one token after the
                prompts and removes it from the cache again.
            ids: prompts, (B, T).
        Returns: a function that returns the logits of the last token, (B, 1, V).
        """


class TorchDecoder(Contender):
    """Decoder called through transformers.

    Args:
        name: name in tables.
        model: model in evaluation mode.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__(name)
        self.model = model

    @property
    def weight_bytes(self) -> int:
        """Returns the size of the state dict."""
        return saved_bytes(self.model)

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Returns the function to time, see `Contender.call`."""
        return {PREFILL: prefill_call, DECODE: decode_call}[kind](self.model, ids)


class CompiledDecoder(TorchDecoder):
    """Decoder with a static cache and a compiled single-token step; prompts are not compiled.

    It corresponds to `generate(cache_implementation="static")` on GPUs, and to a loop around
    `torch.compile(model)` on CPUs.
    """

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Returns the function to time, see `Contender.call`."""
        if kind == PREFILL:
            return super().call(kind, ids)
        return decode_call(self.model, ids, compiles=True)


class NativeDecoder(TorchDecoder):
    """Decoder with a static cache whose tokens are native calls, see `decode_natively`.

    Args:
        name: name in tables.
        model: model in evaluation mode; it is not changed.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__(name, decode_natively(copy.copy(model)))

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Returns the function to time, see `Contender.call`."""
        if kind == PREFILL:
            return super().call(kind, ids)
        return decode_call(self.model, ids, is_static=True)


def prefill_call(model: nn.Module, ids: Tensor) -> Callable[[], Tensor]:
    """Returns a function that reads a prompt into a new cache, with the last logits (B, 1, V)."""

    def call() -> Tensor:
        logits: Tensor = model(input_ids=ids, use_cache=True, logits_to_keep=1).logits
        return logits

    return call


def decode_call(
    model: nn.Module, ids: Tensor, compiles: bool = False, is_static: bool = False
) -> Callable[[], Tensor]:
    """Returns a function for one token after a prompt, with logits (B, 1, V).

    The token is removed from the cache after each call.

    Args:
        model: model in evaluation mode.
        ids: prompt, (B, T).
        compiles: compiles the single-token step. The cache is then static as well.
        is_static: uses a static cache of T + 1 tokens.
    """
    is_static |= compiles
    given = {cache_name(model): _static_cache(model, ids.size(1) + 1)} if is_static else {}
    name, cache = find_cache(model(input_ids=ids, **given, use_cache=True))
    token, step = ids[:, :1], torch.compile(model, dynamic=False) if compiles else model

    def call() -> Tensor:
        logits: Tensor = step(input_ids=token, **{name: cache}, use_cache=True).logits
        cache.crop(-1)
        return logits

    return call


def _static_cache(model: nn.Module, tokens: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=tokens)


class _Counter:
    """File object that counts the bytes written to it."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Does nothing, because no data are buffered."""


def saved_bytes(model: nn.Module) -> int:
    """Returns the size of the saved state dict; shared tensors count once.

    >>> 24 <= saved_bytes(nn.Linear(2, 2)) < 4000
    True
    """
    counter = _Counter()
    torch.save(model.state_dict(), counter)  # type: ignore[arg-type]
    return counter.size_bytes


def build_peers(model: nn.Module) -> tuple[list[TorchDecoder], dict[str, str]]:
    """Returns the model compressed by other libraries, and unavailable peers with reasons.

    Args:
        model: float32 model. It is not modified.
    Returns: bfloat16; torch's dynamic quantization (8-bit integers, weights by tensor or channel,
        inputs by tensor) on a CPU; torchao's 8-bit weights by channel and 4-bit weights in groups
        of 32, if torchao is installed.
    """
    contenders = [TorchDecoder("bfloat16", copy.deepcopy(model).bfloat16())]
    missing: dict[str, str] = {}
    converters: dict[str, Callable[[nn.Module], nn.Module]] = {"quantize_dynamic": _dynamic}
    if importlib.util.find_spec("torchao") is None:
        missing["torchao"] = "is not installed: pip install torchao."
    else:
        converters |= {"torchao int8": _torchao_int8, "torchao int4": _torchao_int4}
    if next(model.parameters()).device.type != "cpu":
        del converters["quantize_dynamic"]
        missing["quantize_dynamic"] = "runs on CPUs only."
    for name, convert in converters.items():
        try:
            contenders.append(TorchDecoder(name, convert(copy.deepcopy(model)).eval()))
        except Exception as error:  # any error of a peer is reported, and the others are measured
            missing[name] = (
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
    return contenders, missing


def _dynamic(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in favor of torchao
        quantized: nn.Module = torch.ao.quantization.quantize_dynamic(
            model, {nn.Linear}, dtype=torch.qint8
        )
    return quantized


def _torchao_int8(model: nn.Module) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


def _torchao_int4(model: nn.Module) -> nn.Module:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    int4: torch.dtype = vars(torch)["int4"]  # torch's own stubs lack it
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=int4, granularity=PerGroup(32)))
    return model
