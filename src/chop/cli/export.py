"""`chop export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.cli.command import Command


def export(
    model: str,
    /,
    *,
    to: tuple[str, ...],
    format: str | None = None,
    tokenizer: bool = True,
    out: Path = Path("runs/export"),
    seconds: float = 1.0,
    threads: int = 1,
) -> Any:
    """Write a compressed model for other engines, and let them read it back.

    [bold]Examples[/]

      chop export runs/compress --to onnx,openvino,pt2

      chop export ./my-llama --format mxint:width=8 --to gguf,compressed-tensors

    Targets: onnx (onnxruntime), openvino, pt2 (torch and C++, without chop), compressed-tensors
    (vLLM, SGLang, transformers), gptq (vLLM, SGLang, GPTQModel), qonnx (hls4ml, FINN), gguf
    (llama.cpp). chop doctor names the libraries that are missing. What a target cannot hold is
    listed by module, and nothing is written for it.

    [bold]Columns[/] per target: size, the largest difference between the engine's outputs and the
    quantized graph's, and how many times as fast it is as the graph in chop.

    [bold]Output[/] in --out: a file or folder per target, table.md, manifest.json.

    Args:
        model: output folder of chop compress, checkpoint of a graph, folder that chop wrote for
            transformers, folder of compressed-tensors, GPTQ or AWQ, file of GGUF, or with --format
            a float model: built-in, folder or hub name.
        to: targets, with commas between them.
        format: number format of the weights of a float model. Default: the model is quantized.
        tokenizer: write the folder's tokenizer too, where the target has a place for it.
        out: folder of the files.
        seconds: seconds to measure per target; 0 measures no times.
        threads: threads of torch and of the engines.
    """
    from chop.actions.export import export as run
    from chop.actions.settings.export import ExportConfig

    return run(ExportConfig(model, to, format, tokenizer, out, seconds, threads))


EXPORT = Command(export)
