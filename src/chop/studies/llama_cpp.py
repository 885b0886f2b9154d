"""llama.cpp as a peer of text generation, through its binding cyllama."""

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
    """Decoder in llama.cpp, loaded from a file with the codes of a graph.

    Args:
        name: name in tables.
        mg: packed graph in formats that GGUF supports.
        tokens: maximum length of a text.
        threads: number of threads of llama.cpp.

    Raises:
        ConfigError: if GGUF cannot represent the graph.
        UnavailableError: if gguf is not installed.
    """

    def __init__(self, name: str, mg: MaseGraph, tokens: int, threads: int) -> None:
        from cyllama.llama import llama_cpp

        vocabulary: int = mg.model.config.get_text_config().vocab_size

        class Model(llama_cpp.LlamaModel):  # type: ignore[misc]
            # cyllama 0.2 reads this attribute from the model, but has it in the vocabulary.
            n_vocab = vocabulary

        super().__init__(name)
        # The file is read while the model runs, so it has to stay.
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
        """Returns the size of the file."""
        return self._bytes

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """Returns a function that reads one prompt, or one token after it, see `Contender.call`.

        Only its first call copies the logits: the binding returns a list of Python floats, which
        takes as long as half of a token. Later calls return the same tensor.
        """
        (prompt,) = ids.tolist()
        tokens, position = (prompt[:1], len(prompt)) if kind == DECODE else (prompt, 0)
        if kind == DECODE:
            self._read(prompt, 0)
        logits: list[Tensor] = []

        def call() -> Tensor:
            self._read(tokens, position)
            if not logits:
                logits.append(torch.tensor(self._context.get_logits()).view(1, 1, -1))
            return logits[0]

        return call

    def _read(self, tokens: list[int], position: int) -> None:
        """Computes the logits of the last token; later cache entries are removed."""
        self._context.memory_seq_rm(0, position, -1)
        self._context.decode(self._batch(tokens, position))


def contenders(
    graphs: Iterable[tuple[str, MaseGraph]], tokens: int, threads: int
) -> tuple[list[Contender], dict[str, str]]:
    """Returns the graphs in llama.cpp, and unavailable ones with reasons.

    Args:
        graphs: format name and packed graph.
        tokens: maximum length of a text.
        threads: number of threads of llama.cpp.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        return [], {NAME: f"is not installed: pip install {LIBRARY}."}
    contenders: list[Contender] = []
    missing: dict[str, str] = {}
    for format_name, mg in graphs:
        name = f"{NAME} {format_name}"
        try:
            contenders.append(_LlamaCpp(name, mg, tokens, threads))
        except Exception as error:  # any error of a peer: others are measured
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            missing[name] = shorten(reason, LONGEST_REASON)
    return contenders, missing
