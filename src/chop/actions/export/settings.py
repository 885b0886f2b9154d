"""Settings of `chop export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chop.config import check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class ExportConfig:
    """Settings of `chop export`.

    Attributes:
        model: output folder of `chop compress`, a checkpoint of a graph, a folder that chop wrote
            for transformers, a folder or file of another tool that has a reader, or with `format` a
            float model: built-in, folder or hub name.
        to: targets, see `chop.export.targets`.
        format: number format of the weights of a float model.
        inputs: with `format`, number format that the layers round their inputs to.
        nearest: rounds modules that a target cannot hold to the nearest format that it can.
        dataset: data set of the test rows: built-in, local file or folder, hub name. Default: that
            of the run, or of the built-in model.
        limit: number of test rows to compare, spread over all. Default: all.
        tokenizer: writes the folder's tokenizer too, where the target has a place for it.
        out: folder of the files.
        batch_sizes: rows of an input whose times are measured.
        seconds: seconds to measure per engine and batch size; 0 measures no times.
        threads: threads of torch and of the engines.
        overrides: with `format`, other formats of weights by pattern, see `chop.formats.recipe`.
        skip: with `format`, patterns of modules that stay float.

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
    limit: int | None = None
    tokenizer: bool = True
    out: Path = Path("runs/export")
    batch_sizes: tuple[int, ...] = (1, 32)
    seconds: float = 1.0
    threads: int = 1
    overrides: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from chop.export.targets import TARGETS, target
        from chop.formats import parse_format_string
        from chop.formats.recipe import Recipe

        check_fields(self, type(self).__name__)
        if not self.to:
            raise ConfigError(f"to: expected one or more of {', '.join(TARGETS)}.")
        if self.seconds < 0 or self.threads < 1:
            raise ConfigError(
                f"expected seconds from 0 on and 1 or more threads, got {self.seconds} and "
                f"{self.threads}."
            )
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ConfigError(f"batch sizes: expected 1 or more, got {list(self.batch_sizes)}.")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit: expected 1 or more, got {self.limit}.")
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
