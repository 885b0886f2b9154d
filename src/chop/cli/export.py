"""`chop export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.cli.command import Command

HELP = """Write a compressed model for other engines, and read the files back.

[bold]Examples[/]

  chop export runs/compress --to onnx,openvino,pt2

  chop export ./my-llama --format mxint8 --to gguf,compressed-tensors

  chop export ./my-llama --format fp8 --inputs fp8 --to compressed-tensors

  chop export ./my-llama --format mxint4 --override 're:.*down_proj=mxint8' --to gguf

  chop export runs/compress --to gptq --nearest --batch 1 --batch 32

[bold]Targets[/], the engines that they are made for, and the formats that they take:

{targets}

What a target cannot hold is listed by module with the nearest format that it can hold, and
nothing is written, for no target; --nearest rounds these modules to that format. onnx and
openvino list none: a note says what became floats, and which inputs are not rounded. The
target's own library reads each file back; folders of gptq are read by chop itself. vLLM,
SGLang, GPTQModel and FINN were not run. chop doctor names the libraries that are missing.

[bold]Tables[/]: per target size, how many packed weights the library decodes to the graph's
values, and the largest difference of outputs; per model the metric on the test rows, where they
are known; per engine and batch size how many times as fast it is as float and as the graph.

[bold]Output[/] in --out: a file or folder per target, table.md, manifest.json, and per batch
size times-batch-N.svg and times-batch-N.json."""


def export(
    model: str,
    /,
    *,
    to: tuple[str, ...],
    format: str | None = None,
    overrides: Mapping[str, str] | None = None,
    skip: tuple[str, ...] = (),
    inputs: str | None = None,
    nearest: bool = False,
    dataset: str | None = None,
    limit: int | None = None,
    tokenizer: bool = True,
    out: Path = Path("runs/export"),
    batch_sizes: tuple[int, ...] = (1, 32),
    seconds: float = 1.0,
    threads: int = 1,
) -> Any:
    """Write a compressed model for other engines, and read the files back.

    Args:
        model: run, checkpoint, exported folder or float model. Namely an output folder of chop
            compress, a checkpoint of a graph, a folder that chop wrote for transformers, one of
            compressed-tensors, GPTQ or AWQ, a file of GGUF, or with --format a float model:
            built-in, folder or hub name.
        to: targets, with commas between them.
        format: number format of the weights of a float model. Default: the model is quantized.
        overrides: other formats of weights, by pattern. They go with --format. A pattern is a path,
            or the end of one, of a module, or an expression behind re:. Of several that match the
            first holds. Example: `re:.*down_proj=mxint8`. Default: none.
        skip: patterns of modules that stay float. They go with --format. Default: none.
        inputs: format that layers round their inputs to. It goes with --format. Default: none.
        nearest: round what a target cannot hold to what it can. Modules get the nearest format that
            the target can hold.
        dataset: data set of the test rows, as of chop compress. Default: that of the run, or of the
            built-in model.
        limit: number of test rows to compare, spread over all. Default: all.
        tokenizer: write the tokenizer too. It is written where the target has a place for it.
        out: folder of the files.
        batch_sizes: rows of an input whose times are measured.
        seconds: seconds to measure per engine and batch size. With 0 no times are measured.
        threads: threads of torch and of the engines.
    """
    from chop.actions.export.job import export as run
    from chop.actions.export.settings import ExportConfig

    what = (model, to, format, inputs, nearest, dataset, limit, tokenizer, out)
    return run(ExportConfig(*what, batch_sizes, seconds, threads, overrides or {}, skip))


EXPORT = Command(export, help=HELP, draws=True, makes_models=True)
