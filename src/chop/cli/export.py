"""`chop export`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

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

EXPORT = Command(
    deferred("chop.actions.export.job:export"),
    "chop.actions.export.settings:ExportConfig",
    HELP,
    arguments=("model",),
)
