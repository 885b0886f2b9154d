"""llama.cpp as a peer of generating text, by its binding cyllama."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.files.temporary import scratch_prefix
from chop.errors import shorten
from chop.export.gguf import target as gguf
from chop.ir.graph import MaseGraph
from chop.studies.generation_peers import DECODE, Contender

LIBRARY, NAME = "cyllama", "llama.cpp"
LONGEST_REASON = 160


class _LlamaCpp(Contender):
    """A decoder in llama.cpp, from a file with the codes of a graph.

    Args:
        name: in tables.
        mg: packed, in formats that GGUF holds.
        tokens: the longest text.
        threads: of llama.cpp.

    Raises:
        ConfigError: GGUF cannot hold the graph.
        UnavailableError: gguf is not installed.
    """

    def __init__(self, name: str, mg: MaseGraph, tokens: int, threads: int) -> None:
        from cyllama.llama import llama_cpp

        vocabulary: int = mg.model.config.get_text_config().vocab_size

        class Model(llama_cpp.LlamaModel):  # type: ignore[misc]
            # cyllama 0.2 reads it of a model to give logits, and has it in the vocabulary.
            n_vocab = vocabulary

        super().__init__(name)
        # Read as it is run: the file has to stay.
        self._folder = tempfile.TemporaryDirectory(prefix=scratch_prefix("llama"))
        path = Path(self._folder.name, "model.gguf")
        self._bytes: int = gguf.write(mg, path)["bytes"]
        llama_cpp.disable_logging()
        llama_cpp.llama_backend_init()
        model_settings, settings = llama_cpp.LlamaModelParams(), llama_cpp.LlamaContextParams()
        model_settings.n_gpu_layers = 0
        settings.n_ctx = settings.n_batch = settings.n_ubatch = tokens
        settings.n_threads = settings.n_threads_batch = threads
        self._model = Model(str(path), model_settings, verbose=False)
        self._context = llama_cpp.LlamaContext(self._model, settings, verbose=False)
        self._batch: Callable[[list[int], int], Any] = llama_cpp.llama_batch_get_one

    @property
    def weight_bytes(self) -> int:
        """Of the file."""
        return self._bytes

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Reads a prompt of one text, or one token after it, as `Contender.call` does."""
        (prompt,) = ids.tolist()
        if kind != DECODE:
            return lambda: self._logits(prompt, 0)
        self._logits(prompt, 0)
        return lambda: self._logits(prompt[:1], len(prompt))

    def _logits(self, tokens: list[int], position: int) -> Tensor:
        """float32 (1, 1, V), of the last token; later ones are forgotten."""
        self._context.memory_seq_rm(0, position, -1)
        self._context.decode(self._batch(tokens, position))
        return torch.tensor(self._context.get_logits()).view(1, 1, -1)


def contenders(
    graphs: Iterable[tuple[str, MaseGraph]], tokens: int, threads: int
) -> tuple[list[Contender], dict[str, str]]:
    """The graphs in llama.cpp, and those that are not there, with the reason.

    Args:
        graphs: packed, by the name of their format.
        tokens: the longest text.
        threads: of llama.cpp.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        return [], {NAME: f"is not installed: pip install {LIBRARY}."}
    found: list[Contender] = []
    missing: dict[str, str] = {}
    for format_name, mg in graphs:
        name = f"{NAME} {format_name}"
        try:
            found.append(_LlamaCpp(name, mg, tokens, threads))
        except Exception as error:  # whatever a peer raises: others are measured
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            missing[name] = shorten(told, LONGEST_REASON)
    return found, missing
