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
        model: run, checkpoint, exported folder or float model. It can be an output folder of chop
            compress, a checkpoint of a graph, a transformers folder that chop wrote, a folder of
            compressed-tensors, GPTQ or AWQ, a GGUF file, or with `format` a float model: built-in
            name, folder or hub name.
        to: targets, separated by commas.
        format: number format of the weights of a float model. Default: the model is quantized.
        inputs: format of the inputs of layers. Needs `format`. Default: none.
        nearest: round modules to the nearest supported format. By default unsupported modules
            are an error.
        dataset: data set of the test rows, as in chop compress. Default: that of the run, or of the
            built-in model.
        limit: number of test rows to compare, spread over all. Default: all.
        tokenizer: write the tokenizer too. Some targets have no place for it.
        out: folder for the files.
        batch_sizes: batch sizes to time.
        seconds: seconds to measure per engine and batch size. 0 skips the measurement.
        threads: threads of torch and of the engines.
        overrides: weights with another format, by pattern. Needs `format`. A pattern is the path
            of a module or its end, or a regular expression after re:. The first match counts.
            Example: `re:.*down_proj=mxint8`. Default: none.
        skip: patterns of modules that stay float. Needs `format`. Default: none.

    Raises:
        ConfigError: if a target or a format is unknown, the format of inputs needs calibration, a
            pattern is malformed, or there is no target.
        UnavailableError: if the library of a target is not installed.
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
    threads: Annotated[int, Range(1, 1024)] = 1
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
        if self.format is not None:
            parse_format_string(self.format)
        if self.inputs is not None:
            if self.format is None:
                raise ConfigError("inputs: expected --format for the weights as well.")
            if not parse_format_string(self.inputs).is_fitted:
                raise ConfigError(
                    f"inputs: '{self.inputs}' needs calibration, by chop compress. Expected a "
                    "format with dynamic scales, such as scale_integer:width=8:granularity=row."
                )
        if (self.overrides or self.skip) and self.format is None:
            raise ConfigError(
                "overrides and skip: expected --format for the other weights as well."
            )
        Recipe.read(self.overrides, self.skip, "chop export")
        self._check_is_no_export()
        for name in self.to:
            target(name).require()

    def _check_is_no_export(self) -> None:
        """Raises ConfigError if the model is an ONNX file beside the checkpoint of its run."""
        from chop.ir.storage.checkpoint import find_checkpoint

        path = Path(self.model).expanduser()
        if path.suffix == ".onnx" and path.is_file() and find_checkpoint(path.parent):
            raise ConfigError(
                f"model: '{self.model}' is an exported file: pass the folder of its run, "
                f"'{path.parent}'."
            )
