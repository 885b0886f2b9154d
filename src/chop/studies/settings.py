"""Settings of the studies as frozen dataclasses, importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from chop.config import Range, check_fields
from chop.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "float16"]
QUICK_SECONDS = 0.02
ATTENTION_SHAPE = ("batch x heads x tokens x head size", "1x12x128x64")
SOFTMAX_SHAPE = ("rows x columns", "4096x1024")
"""Meaning of the numbers of a shape, and an example."""


def parse_shape(text: str, sizes: str, example: str) -> tuple[int, ...]:
    """Parses the numbers of a shape.

    Args:
        text: numbers separated by x.
        sizes: meaning of the numbers, for the message.
        example: valid shape.
    Raises:
        ConfigError: if the text is not the right number of positive integers.

    >>> parse_shape("4096x1024", "rows x columns", "2x3")
    (4096, 1024)
    """
    parts = text.lower().split("x")
    is_right = len(parts) == len(sizes.split(" x "))
    if not is_right or not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"shape '{text}': expected {sizes}, such as {example}.")
    return tuple(map(int, parts))


def _check_iterations(iterations: tuple[int, ...]) -> None:
    """Raises ConfigError if there are no iterations.

    Raises:
        ConfigError: if there are none.
    """
    if not iterations:
        raise ConfigError("iterations: expected at least one.")


@dataclass(frozen=True)
class StudyConfig:
    """Measurement.

    All studies share these settings.

    Attributes:
        seconds: seconds to measure per variant and case. Longer narrows the confidence intervals.
        threads: threads of torch; one gives the steadiest ratios.
        method: timing method. With `paired`, variants take turns. With `torch`
            (torch.utils.benchmark) and `time` (a loop), they run one after the other.
        device: torch device: cpu, cuda, cuda:1 and so on.
        out: folder for tables, plots and measurements.
        quick: a small case in little time, to see that all runs. Defaults are replaced; what is
            given is measured as given. The times mean nothing.
        matmul_precision: precision of float32 products. As in `torch.set_float32_matmul_precision`:
            medium lets packed layers round to bfloat16 where that is faster. Default: as torch is
            set, highest.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {}
    """Replacements of defaults by `quick`."""

    seconds: Annotated[float, Range(above=0)] = 0.3
    threads: Annotated[int, Range(1, 1024)] = 1
    method: Literal["paired", "torch", "time"] = "paired"
    device: str = "cpu"
    out: Path = Path("runs/bench")
    quick: bool = False
    matmul_precision: Literal["highest", "high", "medium"] | None = None

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        if self.quick:
            usual = {each.name: each.default for each in fields(self)}
            for name, value in {"seconds": QUICK_SECONDS, **self.QUICK}.items():
                if getattr(self, name) == usual[name]:
                    object.__setattr__(self, name, value)

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of `chop.bench.compare`."""
        names = ("seconds", "threads", "method", "device")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class BenchAttentionConfig(StudyConfig):
    """Settings of `chop bench attention`.

    Attributes:
        shapes: shapes: batch x heads x tokens x head size.
        dtypes: dtypes of queries, keys and values.
        masks: attention masks: none, padding, causal. Padding is boolean; rows end at different
            lengths.
        iterations: calls of the runs in the course's table.
        seed: random seed of the inputs.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"shapes": ("2x3x32x16",)}

    out: Path = Path("runs/bench/attention")
    shapes: tuple[str, ...] = ("1x12x128x64", "8x12x128x64", "1x12x1024x64")
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
    masks: tuple[Literal["none", "padding", "causal"], ...] = ("none", "padding", "causal")
    iterations: Annotated[tuple[int, ...], Range(1)] = (5, 50, 200)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_iterations(self.iterations)
        for name in ("shapes", "dtypes", "masks"):
            if not getattr(self, name):
                usual = getattr(BenchAttentionConfig, name)[0]
                raise ConfigError(f"{name}: expected one or more, such as {usual}.")
        for shape in self.shapes:
            parse_shape(shape, *ATTENTION_SHAPE)


@dataclass(frozen=True)
class BenchLinearConfig(StudyConfig):
    """Settings of `chop bench linear`.

    Attributes:
        shapes: shapes: rows x inputs x outputs.
        iterations: calls of the runs in the course's table.
        seed: random seed of weights and inputs.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"shapes": ("32x64x128",)}

    out: Path = Path("runs/bench/linear")
    shapes: tuple[str, ...] = ("1x768x3072", "128x768x3072", "2048x128x512")
    iterations: Annotated[tuple[int, ...], Range(1)] = (5, 50, 200)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_iterations(self.iterations)
        if not self.shapes:
            raise ConfigError("shapes: expected one or more, such as 128x768x3072.")
        for shape in self.shapes:
            parse_shape(shape, "rows x inputs x outputs", "128x768x3072")


@dataclass(frozen=True)
class BenchSoftmaxConfig(StudyConfig):
    """Settings of `chop bench softmax`.

    Attributes:
        shapes: shapes: rows x columns.
        dtypes: dtypes of input and result.
        seed: random seed of the inputs.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"shapes": ("64x100",)}

    seconds: Annotated[float, Range(above=0)] = 0.5
    out: Path = Path("runs/bench/softmax")
    shapes: tuple[str, ...] = ("131072x128", "16384x1024", "512x32768")
    dtypes: tuple[Dtype, ...] = ("float32",)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.shapes and self.dtypes):
            raise ConfigError("expected one or more shapes, such as 4096x1024, and dtypes.")
        for shape in self.shapes:
            parse_shape(shape, *SOFTMAX_SHAPE)


@dataclass(frozen=True)
class BenchCompileConfig(StudyConfig):
    """Settings of `chop bench compile`.

    Attributes:
        models: built-in names, folders or hub names. Names of `chop.models.MODELS` (resnet18,
            bert-base-uncased ...) are others. Weights are random: times do not depend on them.
        batch_sizes: rows of an input.
        modes: modes of torch.compile. Default: those that suit the device.
        length: tokens of a text.
        image_size: side of an image in pixels. It is used where the model takes any.
        iterations: calls of the runs in the course's table.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "models": ("mlp",),
        "batch_sizes": (2,),
        "modes": ("default",),
    }

    seconds: Annotated[float, Range(above=0)] = 1.0
    out: Path = Path("runs/bench/compile")
    models: tuple[str, ...] = ("bert-tiny", "resnet18")
    batch_sizes: Annotated[tuple[int, ...], Range(1)] = (1, 16)
    modes: tuple[Literal["default", "reduce-overhead", "max-autotune", "freezing"], ...] = ()
    length: Annotated[int, Range(1)] = 128
    image_size: Annotated[int | None, Range(0)] = 64
    iterations: Annotated[tuple[int, ...], Range(1)] = (5, 50, 200)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_iterations(self.iterations)
        if not self.batch_sizes:
            raise ConfigError("batch_sizes: expected at least one.")
        if not self.models:
            raise ConfigError("models: expected one or more, such as bert-tiny.")


@dataclass(frozen=True)
class BenchDequantizeConfig(StudyConfig):
    """Settings of `chop bench dequantize`.

    Attributes:
        formats: formats of the packed weight.
        outputs: rows of the weight.
        inputs: columns of the weight.
        rows: rows of the activations that multiply the weight.
        dtype: dtype of activations and dequantized weight.
        model: model whose memory is measured. A name or folder. Default: a BERT of random weights.
        seed: random seed of the weight.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"outputs": 96, "inputs": 1024, "rows": (1,)}

    out: Path = Path("runs/bench/dequantize")
    formats: tuple[Literal["mxint8", "mxint4", "mxfp8", "mxfp4"], ...] = (
        *("mxint8", "mxint4", "mxfp8", "mxfp4"),
    )
    outputs: Annotated[int, Range(1)] = 4096
    inputs: Annotated[int, Range(1)] = 4096
    rows: Annotated[tuple[int, ...], Range(1)] = (1, 16, 256)
    dtype: Dtype = "float32"
    model: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.formats:
            raise ConfigError("formats: expected at least one.")


@dataclass(frozen=True)
class BenchGenerateConfig(StudyConfig):
    """Settings of `chop bench generate`.

    Attributes:
        model: decoder: gpt-tiny (built in), folder or hub name.
        formats: formats of linear layers and embeddings. Their weights are packed.
        prompt: tokens of a prompt.
        batch: texts at once.
        caches: formats of KV caches, or KEYS/VALUES. They are compared with the float one, on text
            that the model writes. Default: none.
        residual: newest tokens that such a cache leaves float.
        peers: also measures other libraries. They are bfloat16, torch's dynamic quantization, and
            torchao and llama.cpp (cyllama) where they are installed.
        compile: also measures torch.compile. Steps of one token are compiled, with a cache of fixed
            size; compiling takes a minute or two for each model.
        seed: random seed of the prompts.

    The other settings are those of `StudyConfig`.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"prompt": 8, "peers": False}

    seconds: Annotated[float, Range(above=0)] = 2.0
    out: Path = Path("runs/bench/generate")
    model: str = "gpt-tiny"
    formats: tuple[Literal["mxint8", "mxint4", "mxfp8", "mxfp4", "group_integer4"], ...] = (
        "mxint8",
        "mxint4",
    )
    prompt: Annotated[int, Range(1)] = 64
    batch: Annotated[int, Range(1)] = 1
    caches: tuple[str, ...] = ()
    residual: Annotated[int, Range(0)] = 128
    peers: bool = True
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.formats:
            raise ConfigError("formats: expected at least one.")
