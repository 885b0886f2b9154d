"""`chop bench`: what was gained, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chop.cli import options

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Measure what was gained: is it faster, is it smaller?

Variants take turns in blocks of 20 ms, A B ... B A, and are compared block by block, so that
whatever else the machine does slows all of them. A ratio comes with its 99 % interval; where that
spans 1, [bold]no difference is shown[/]. Compiling and the first call are timed apart, and the
largest difference of the outputs stands in the same row.

One thread is compared by the processor's time, which other programs hardly disturb: ratios hold
on a machine in use. Several threads are compared by the wall's time: keep the machine idle.""",
)

Seconds = Annotated[
    float | None, typer.Option(help="Of measuring, per variant; longer narrows the intervals.")
]
Threads = Annotated[int | None, typer.Option(help="Of torch; one gives the steadiest ratios.")]
BatchSizes = Annotated[
    list[int] | None, typer.Option("--batch", help="Rows of an input, again and again.")
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", help="float32, bfloat16 or float16, again and again."),
]
Method = Annotated[
    str | None, typer.Option(help="paired, in turns; torch or time, one after the other.")
]
Quick = Annotated[
    bool | None, typer.Option("--quick", help="Small and short: shows that all works, no times.")
]

MODEL_HELP = """Measure a compressed model beside the float model that it was.

[bold]Examples[/]

  chop bench model                              (compresses the built-in demo model first)

  chop bench model --compressed runs/compress

  chop bench model --model bert-tiny --format mxint --batch 1 --batch 64

  chop bench model --model ./my-bert --dataset ./imdb --max-length 128 --device cuda

[bold]What it shows[/] per batch size: latency, how many times as fast as float, rows per second,
what the weights take in memory and on disk, what a call takes on top, and the largest difference
of the outputs. "float graph" is the model raised to a graph and not compressed: what it gains is
not the compression's.

[bold]What it writes[/] into --out: table.md, and per batch size times-batch-N.json (every block of
every variant, threads, instruction set, load, versions) and times-batch-N.svg.
"""


@bench_app.command("model", help=MODEL_HELP)
def model_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    compressed: Annotated[
        Path | None, typer.Option(help="Output folder of chop compress; its model is measured.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Compress in this format where no folder is given.")
    ] = None,
    batch_sizes: BatchSizes = None,
    seconds: Seconds = None,
    threads: Threads = None,
    max_length: options.MaxLength = None,
    out: options.Out = None,
    device: options.Device = None,
    config: options.Config = None,
) -> None:
    """See `MODEL_HELP`."""
    settings = options.settings_from(locals(), config)
    from chop.actions.bench import BenchModelConfig, bench_model
    from chop.config import parse

    bench_model(parse(BenchModelConfig, settings, str(config or "chop bench model")))


ATTENTION_HELP = """Measure attention written out against fused scaled-dot-product attention.

[bold]Examples[/]

  chop bench attention                          (BERT-base's heads, three dtypes, three masks)

  chop bench attention --shape 4x12x1024x64 --shape 1x12x2048x64 --dtype float32 --mask none

  chop bench attention --device cuda --shape 16x16x4096x128 --dtype bfloat16

[bold]What it shows[/] per shape (batch x heads x tokens x head size), dtype and mask: "naive", an
operation at a time; "three kernels", where the first product scales and masks its own result;
"fused", with the kernel that torch chose. How many times as fast as naive, the bytes that each has
to move, what share of this device's ceilings it reaches (bytes copied and operations of a product
a second, both measured first), and the largest error against float64.

[bold]What it writes[/] into --out: tables.md, and per case a .json with every block and a .svg.
"""


@bench_app.command("attention", help=ATTENTION_HELP)
def attention_command(
    shapes: Annotated[
        list[str] | None, typer.Option("--shape", help="Batch x heads x tokens x head size.")
    ] = None,
    dtypes: Dtypes = None,
    masks: Annotated[
        list[str] | None, typer.Option("--mask", help="none, padding or causal, again and again.")
    ] = None,
    seconds: Seconds = None,
    threads: Threads = None,
    method: Method = None,
    out: options.Out = None,
    device: options.Device = None,
    quick: Quick = None,
    config: options.Config = None,
) -> None:
    """See `ATTENTION_HELP`."""
    settings = options.settings_from(locals(), config)
    from chop.actions.bench_results import measure_and_write
    from chop.config import parse
    from chop.studies.attention import BenchAttentionConfig, bench_attention

    chosen = parse(BenchAttentionConfig, settings, str(config or "chop bench attention"))
    measure_and_write(bench_attention, chosen)


COMPILE_HELP = """Measure a model against what torch.compile makes of it.

[bold]Examples[/]

  chop bench compile                            (bert-tiny and resnet18, batches of 1 and 16)

  chop bench compile --model cnn --model prajjwal1/bert-tiny --batch 4 --mode default

  chop bench compile --model ./my-bert --length 256 --device cuda

  chop bench compile --model mlp --method time   (one after the other, as courses do it)

[bold]What it shows[/] per model, batch size and mode: how many times as fast as eager, what
compiling took, and after how many calls that is paid back. Weights are drawn, no network is needed
for built-in names and those of chop.models.MODELS (resnet50, bert-base-uncased ...). Then what a
run of 5, 50 or 200 iterations would have shown, compile time counted and not, all from the same
measurement; and the lines where the model's graph breaks, or has to be compiled again for another
batch size or length.

[bold]Modes[/]: default; reduce-overhead (CUDA graphs); max-autotune (tries kernels); freezing
(weights become constants). Nothing compiled before is used again: compile times are cold.

[bold]What it writes[/] into --out: tables.md, and per case a .json with every block and a .svg.
"""


@bench_app.command("compile", help=COMPILE_HELP)
def compile_command(
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Built-in, folder or hub name, again and again."),
    ] = None,
    batch_sizes: BatchSizes = None,
    modes: Annotated[
        list[str] | None,
        typer.Option("--mode", help="default, reduce-overhead, max-autotune or freezing."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a text.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of pictures where the model takes any.")
    ] = None,
    iterations: Annotated[
        list[int] | None, typer.Option(help="Calls in the course's table, again and again.")
    ] = None,
    seconds: Seconds = None,
    threads: Threads = None,
    method: Method = None,
    out: options.Out = None,
    device: options.Device = None,
    quick: Quick = None,
    config: options.Config = None,
) -> None:
    """See `COMPILE_HELP`."""
    settings = options.settings_from(locals(), config)
    from chop.actions.bench_results import measure_and_write
    from chop.config import parse
    from chop.studies.compile import BenchCompileConfig, bench_compile

    chosen = parse(BenchCompileConfig, settings, str(config or "chop bench compile"))
    measure_and_write(bench_compile, chosen)


SOFTMAX_HELP = """Measure softmax written out against fused softmax.

[bold]Examples[/]

  chop bench softmax                            (16.8 million numbers in short and in long rows)

  chop bench softmax --shape 4096x4096 --dtype bfloat16

  chop bench softmax --device cuda --shape 65536x2048 --shape 1024x131072

[bold]What it shows[/] per shape (rows x columns) and dtype: "naive", five operations that move
8MN + 4M numbers; torch; what torch.compile makes of naive; on a GPU our Triton kernel, which reads
and writes every number once; and copying, which does no less. How many times as fast as naive,
bytes counted, bytes that a result needs per second, the share of a copy's speed, and the largest
error against float64. Without a GPU the Triton kernel runs in Triton's interpreter: its errors are
shown, and no times.

[bold]What it writes[/] into --out: tables.md, and per case a .json with every block and a .svg.
"""


@bench_app.command("softmax", help=SOFTMAX_HELP)
def softmax_command(
    shapes: Annotated[list[str] | None, typer.Option("--shape", help="Rows x columns.")] = None,
    dtypes: Dtypes = None,
    seconds: Seconds = None,
    threads: Threads = None,
    method: Method = None,
    out: options.Out = None,
    device: options.Device = None,
    quick: Quick = None,
    config: options.Config = None,
) -> None:
    """See `SOFTMAX_HELP`."""
    settings = options.settings_from(locals(), config)
    from chop.actions.bench_results import measure_and_write
    from chop.config import parse
    from chop.studies.softmax import BenchSoftmaxConfig, bench_softmax

    chosen = parse(BenchSoftmaxConfig, settings, str(config or "chop bench softmax"))
    measure_and_write(bench_softmax, chosen)


DEQUANTIZE_HELP = """Measure packed weights: decoding them, multiplying by them, keeping them.

[bold]Examples[/]

  chop bench dequantize                         (a weight of 4096 x 4096 in four formats)

  chop bench dequantize --format mxint8 --rows 1 --rows 64 --model bert-tiny

  chop bench dequantize --device cuda --dtype bfloat16 --outputs 8192 --inputs 8192

[bold]Decoding[/]: a loop over blocks (on a part, scaled up), torch, C++ on a CPU, Triton and, for
mxint8, CUDA C++ on a GPU: bytes per second as a share of what copying reaches, and whether every
bit is right. [bold]Multiplying[/]: "fused" decodes on the way, "decoded first" writes the weight
out. [bold]Memory[/] of a model with packed linear layers: in theory, as predicted from its layers,
of its file, and as measured in a fresh process or from the GPU's allocator.

[bold]What it writes[/] into --out: tables.md, and per case a .json with every block and a .svg.
"""


@bench_app.command("dequantize", help=DEQUANTIZE_HELP)
def dequantize_command(
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="mxint8, mxint4, mxfp8 or mxfp4.")
    ] = None,
    outputs: Annotated[int | None, typer.Option(help="Rows of the weight.")] = None,
    inputs: Annotated[int | None, typer.Option(help="Columns of the weight.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Of activations, again and again.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    model: options.Model = None,
    seconds: Seconds = None,
    threads: Threads = None,
    method: Method = None,
    out: options.Out = None,
    device: options.Device = None,
    quick: Quick = None,
    config: options.Config = None,
) -> None:
    """See `DEQUANTIZE_HELP`."""
    settings = options.settings_from(locals(), config)
    from chop.actions.bench_results import measure_and_write
    from chop.config import parse
    from chop.studies.dequantize import BenchDequantizeConfig, bench_dequantize

    chosen = parse(BenchDequantizeConfig, settings, str(config or "chop bench dequantize"))
    measure_and_write(bench_dequantize, chosen)
