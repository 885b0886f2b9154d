"""Settings of `chop export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from chop.config import Range, check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class ExportConfig:
    """Settings of `chop export`.

    Attributes:
        model: run, checkpoint, exported folder or float model. Namely an output folder of chop
            compress, a checkpoint of a graph, a folder that chop wrote for transformers, one of
            compressed-tensors, GPTQ or AWQ, a file of GGUF, or with `format` a float model:
            built-in, folder or hub name.
        to: targets, with commas between them.
        format: number format of the weights of a float model. Default: the model is quantized.
        inputs: format that layers round their inputs to. It goes with `format`. Default: none.
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
        overrides: other formats of weights, by pattern. They go with `format`. A pattern is a path,
            or the end of one, of a module, or an expression behind re:. Of several that match the
            first holds. Example: `re:.*down_proj=mxint8`. Default: none.
        skip: patterns of modules that stay float. They go with `format`. Default: none.

    Raises:
        ConfigError: a target or a format is unknown, inputs have one that waits for data, a pattern
            is malformed, or there is no target.
        UnavailableError: the library of a target is not installed.
    """

    model: str
    to: tuple[str, ...]
    format: str | None = None
    inputs: str | None = None
    nearest: bool = False
    dataset: str | None = None
    limit: Annotated[int | None, Range(1)] = None
    tokenizer: bool = True
    out: Path = Path("runs/export")
    batch_sizes: Annotated[tuple[int, ...], Range(1)] = (1, 32)
    seconds: Annotated[float, Range(0)] = 1.0
    threads: Annotated[int, Range(1)] = 1
    overrides: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from chop.export.targets import TARGETS, target
        from chop.formats import parse_format_string
        from chop.formats.recipe import Recipe

        check_fields(self, type(self).__name__)
        if not self.to:
            raise ConfigError(f"to: expected one or more of {', '.join(TARGETS)}.")
        if not self.batch_sizes:
            raise ConfigError("batch_sizes: expected at least one.")
        if len({*self.to}) < len(self.to):
            raise ConfigError(f"to: expected each target once, got {', '.join(self.to)}.")
        if self.format is not None:
            parse_format_string(self.format)
        if self.inputs is not None:
            if self.format is None:
                raise ConfigError("inputs: expected a format of the weights, too, got none.")
            if not parse_format_string(self.inputs).is_fitted:
                raise ConfigError(
                    f"inputs: '{self.inputs}' waits for data, which chop compress calibrates on; "
                    "expected scales of each input, as scale_integer:width=8:granularity=row."
                )
        if (self.overrides or self.skip) and self.format is None:
            raise ConfigError("overrides and skip: expected a format of the other weights, too.")
        Recipe.read(self.overrides, self.skip, "chop export")
        for name in self.to:
            target(name).require()
