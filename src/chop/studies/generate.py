"""Study of text generation: tokens per second of a packed decoder and of its peers.

Shapes: B texts, T tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.displayed import Displayed
from chop.bench.clock import clock_for
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio
from chop.bench.timing import Variant, compare, surroundings
from chop.captured.huggingface.cache_names import find_cache
from chop.errors import ConfigError
from chop.formats import NumberFormat, parse_format_string
from chop.ir.graph import MaseGraph
from chop.models import load_model
from chop.models.positions import check_positions
from chop.pipelines.packed_weights import pack_weights
from chop.studies import llama_cpp
from chop.studies.decoding import FORMATS as MICROSCALING
from chop.studies.generation_peers import (
    DECODE,
    PREFILL,
    CompiledDecoder,
    Contender,
    NativeDecoder,
    TorchDecoder,
    build_peers,
)
from chop.studies.quantized_caches import JUDGED, CacheRow, check_caches, compare_caches
from chop.studies.settings import BenchGenerateConfig

LOAD_AS = "text-generation"
FORMATS: Mapping[str, NumberFormat] = {
    **MICROSCALING,
    "group_integer4": parse_format_string("group_integer:width=4"),
}
"""Formats of packed weights by their names in `--formats`."""


@dataclass(frozen=True)
class _GenerateRow:
    """Result of one model.

    Attributes:
        model: `float32`, a format of packed weights, or a peer.
        prefill_per_second: prompt tokens per second.
        decode_per_second: generated tokens per second, one for each text at a time.
        weight_bytes: size of the saved parameters, shared ones once.
        prefill: measurement of a prompt.
        decode: measurement of a token.
    """

    model: str
    prefill_per_second: float
    decode_per_second: float
    weight_bytes: int
    prefill: Measured
    decode: Measured

    def formatted(self, is_baseline: bool) -> dict[str, Any]:
        """Formats the row for a table."""
        first = "1 (baseline)"
        return {
            "model": self.model,
            "prefill tokens/s": f"{self.prefill_per_second:,.0f}",
            "prefill, times as fast": first if is_baseline else format_ratio(self.prefill.ratio),
            "decode tokens/s": f"{self.decode_per_second:,.1f}",
            "decode, times as fast": first if is_baseline else format_ratio(self.decode.ratio),
            "weights": format_bytes(self.weight_bytes),
            "peak of a prefill": format_bytes(self.prefill.peak_bytes),
            "largest difference": None if is_baseline else self.decode.largest_difference,
        }


@dataclass(frozen=True, repr=False)
class GenerateComparison(Displayed):
    """Results of the generation study.

    Attributes:
        rows: results by model, float32 first.
        comparisons: `prefill` and `decode` -> comparison with all times.
        missing: unavailable peer -> reason.
        caches: results by KV cache, the float cache first. Empty if none were requested.
    """

    rows: tuple[_GenerateRow, ...]
    comparisons: Mapping[str, Comparison]
    missing: Mapping[str, str]
    caches: tuple[CacheRow, ...] = ()

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        how = self.comparisons[DECODE].how
        rows = [row.formatted(position == 0) for position, row in enumerate(self.rows)]
        tables = {f"Generating text ({how})": rows}
        if self.caches:
            title = f"KV caches of float32 weights, {JUDGED} tokens after the prompt"
            tables[title] = [row.formatted() for row in self.caches]
        if self.missing:
            reasons = [{"peer": name, "why": why} for name, why in self.missing.items()]
            tables["Not measured"] = reasons
        return tables


def bench_generate(config: BenchGenerateConfig) -> GenerateComparison:
    """Measures a prompt and a following token of all models, interleaved.

    Raises:
        ConfigError: if the model is not a decoder.
        UnavailableError: if the model does not exist.
    """
    model = load_model(config.model, task=_task(config.model)).to(config.device)
    ids = _prompt(model, config)
    if config.caches:
        check_caches(model, config.caches, config.prompt, config.residual)
    missing: dict[str, str] = {}
    graphs: dict[str, MaseGraph] = {n: packed_graph(model, n) for n in config.formats}
    contenders: list[Contender] = [TorchDecoder("float32", model)]
    packed = [TorchDecoder(n, mg.to_module().eval()) for n, mg in graphs.items()]
    contenders += packed
    if config.batch == 1 and config.device == "cpu":
        contenders += [NativeDecoder(f"{each.name} native", each.model) for each in packed]
    if config.compile:
        in_torch = [each for each in contenders if type(each) is TorchDecoder]
        contenders += [CompiledDecoder(f"{each.name} compiled", each.model) for each in in_torch]
    if config.peers:
        for available, absent in (build_peers(model), _in_llama_cpp(graphs, config)):
            contenders += available
            missing |= absent
    comparisons = {
        kind: compare(
            [Variant(c.name, prepare=partial(c.call, kind, ids)) for c in contenders],
            **_how(config),
        )
        for kind in (PREFILL, DECODE)
    }
    rows = tuple(_row(c, comparisons, ids) for c in contenders)
    return GenerateComparison(rows, comparisons, missing, _caches(model, config, ids))


def _caches(model: nn.Module, config: BenchGenerateConfig, ids: Tensor) -> tuple[CacheRow, ...]:
    if not config.caches:
        return ()
    with surroundings(config.threads, inference=True):
        clock = clock_for(ids.device, config.threads, None)
        start = ids[:, :1]
        return compare_caches(model, config.caches, config.prompt, config.residual, clock, start)


def _how(config: BenchGenerateConfig) -> dict[str, Any]:
    return {**config.how, "baseline": "float32"}


def _in_llama_cpp(
    graphs: Mapping[str, MaseGraph], config: BenchGenerateConfig
) -> tuple[list[Contender], dict[str, str]]:
    if config.batch > 1 or config.device != "cpu":
        return [], {llama_cpp.NAME: "is measured only with a batch of 1, on a CPU."}
    return llama_cpp.contenders(graphs.items(), config.prompt + 1, config.threads)


def _task(name: str) -> str | None:
    from chop.models import builtin_model

    return None if builtin_model(name) else LOAD_AS


def _prompt(model: nn.Module, config: BenchGenerateConfig) -> Tensor:
    """Returns random tokens; times do not depend on their values."""
    if not _generates_with_cache(model):
        raise ConfigError(
            f"model '{config.model}': expected a decoder, with generate() and a cache, such "
            f"as gpt-tiny; got a {type(model).__name__}."
        )
    check_positions(config.prompt, model, "prompt", generated=1)
    vocabulary: int = model.config.get_text_config().vocab_size  # type: ignore[union-attr, operator]
    drawn = torch.Generator().manual_seed(config.seed)
    return torch.randint(vocabulary, (config.batch, config.prompt), generator=drawn).to(
        config.device
    )


def _generates_with_cache(model: nn.Module) -> bool:
    """Returns whether a model generates with a KV cache; encoders do not."""
    if not getattr(model, "can_generate", bool)():
        return False
    start = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with torch.no_grad():
        _, cache = find_cache(model(input_ids=start, use_cache=True))
    return hasattr(cache, "crop")


def packed_graph(model: nn.Module, name: str) -> MaseGraph:
    """Packs the weights of a decoder's linear layers and embeddings in a format.

    Args:
        model: Hugging Face decoder. It is not modified.
        name: one of `FORMATS`. An embedding tied to the last layer is packed once.
    """
    return pack_weights(MaseGraph(model), FORMATS[name])


def _row(contender: Contender, comparisons: Mapping[str, Comparison], ids: Tensor) -> _GenerateRow:
    prefill, decode = (comparisons[name][contender.name] for name in (PREFILL, DECODE))
    return _GenerateRow(
        contender.name,
        ids.numel() / prefill.seconds,
        len(ids) / decode.seconds,
        contender.weight_bytes,
        prefill,
        decode,
    )
