"""Settings of a workload: model, data and device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from chop.config import MORE, Range, check_fields, check_text
from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.train.distillation.settings import Distillation


def short_name(name: str) -> str:
    """Returns the last component of a path, for titles; built-in and hub names are unchanged.

    >>> short_name("/home/me/net.py:Net"), short_name("runs/../my-bert/"), short_name("org/bert")
    ('net.py:Net', 'my-bert', 'org/bert')
    """
    # Imports torch, which the help of commands avoids.
    from chop.data.builtin_names import plain_name

    name = plain_name(name)
    path = Path(name).expanduser()
    is_path = path.is_absolute() or ".." in path.parts or name.startswith((".", "~"))
    if is_path or Path(name.partition(":")[0]).exists():
        return path.name or path.resolve().name or name
    return name


IN_FILES = ("model", "dataset", "weights", "tokenizer", "evaluate", "loss", "distill_teacher")
"""Settings with paths in which `~` is expanded, since shells expand only unquoted ones."""


PIXELS = {"hint": "Divide a mean and a deviation of pixels from 0 to 255 by 255."}
"""Metadata of settings in units of pixels from 0 to 1."""


@dataclass(frozen=True)
class _OwnFunctions:
    """Functions of the user as commands name them: `file.py:fn`.

    Attributes:
        evaluate: function that scores a model. Default: the task's metric.
        lower_is_better: True if smaller numbers are better.
        loss: trains a model; None uses the task's loss.
    """

    evaluate: str | None = None
    lower_is_better: bool = False
    loss: str | None = None


@dataclass(frozen=True)
class WorkloadConfig:
    """Model, data and device.

    Every job has these settings first.

    Attributes:
        model: built-in name, folder, hub name, or file.py:Net. A folder is a Hugging Face model.
            The file of `file.py:Net`, a class or function, is executed. `timm:NAME` is a timm
            model. chop emit and chop lower also take a QONNX file (.onnx).
        dataset: built-in name, local file or folder, or hub name. A local one is a table, a folder
            of images per class, or images/ with masks/. Default: the built-in model's own.
        out: folder for all results.
        train_epochs: epochs of fine-tuning before the job, for models that are not built in.
        limit: number of rows to use from each split. Default: all.
        max_length: number of tokens to truncate texts to. Default: the tokenizer's limit, at most
            512.
        stride: number of tokens by which windows of `max_length` move over running text: lines of
            .txt files, or with this setting the texts of a table joined; each token is scored once,
            with the tokens before it as context. Default: half of `max_length`.
        tokenizer: local folder or hub name of the tokenizer. Default: the model's own.
        label_mean: mean that labels were standardized by. It is subtracted from regression
            labels if the model was trained on standardized ones. Default: 0.
        label_std: standard deviation that labels were divided by. Default: 1.
        text_column: column with the texts. Default: `text`, `sentence` and the like.
        label_column: column with the labels, or several columns of numbers with commas between
            them. Default: `labels` or `label`.
        input_columns: columns of a table that the model reads, in the order of its input. Default:
            all columns of numbers but the labels, in the order of the table.
        class_names: names of the classes, in the order of the model's outputs. Rows of other
            classes are refused. Default: those of the model, else the names in the data in
            alphabetical order.
        pixel_mean: mean to subtract from pixels of 0 to 1. One number, or one per channel.
            Default: from the model's processor config, its `default_cfg` or the data set, else
            0.5.
        pixel_std: standard deviation to divide pixels by. Default: as for pixel_mean.
        image_size: height and width of images, or one number for both. Default: that of the
            model, else that of the data set.
        channels: channels of images: 1 is gray, 3 is RGB. Default: as for image_size.
        weights: state dict of file.py:Net or timm:NAME. A file .safetensors or .pt. Default: the
            weights that the function creates or timm downloads.
        task: task type, as classification or regression. Several outputs have one each, by
            label column: `kind=classification,age=regression`. Default: inferred from the
            labels, never binary or multilabel.
        metric: evaluation metric, such as accuracy or f1. Default: the task's own.
        force: continue with a float model that is no better than a constant answer, such as the
            most common class. chop emit also continues with a circuit that takes hours to simulate.
        batch_size: rows of a training step.
        seed: random seed of training and sampling.
        device: torch device: cpu, cuda, cuda:1 and so on. Default: a GPU if there is one, else the
            CPU.
        matmul_precision: precision of float32 products. As in `torch.set_float32_matmul_precision`:
            medium lets packed layers round to bfloat16 where that is faster. Accuracy, perplexity
            and KL are measured in the highest. Default: torch's setting, highest.
    """

    takes_formats: ClassVar[bool] = False
    """True if the job takes a model that is quantized already, with its own number formats."""

    model: str = "vit"
    dataset: str | None = None
    out: Path = Path("runs")
    train_epochs: Annotated[int, Range(0, 10_000)] = field(default=0, metadata=MORE)
    limit: Annotated[int | None, Range(1, 10**9)] = None
    max_length: Annotated[int | None, Range(1, 10**6)] = None
    stride: Annotated[int | None, Range(1, 10**6)] = field(default=None, metadata=MORE)
    tokenizer: str | None = field(default=None, metadata=MORE)
    label_mean: float | None = field(default=None, metadata=MORE)
    label_std: Annotated[float | None, Range(above=0)] = field(default=None, metadata=MORE)
    text_column: str | None = field(default=None, metadata=MORE)
    label_column: str | None = field(default=None, metadata=MORE)
    input_columns: tuple[str, ...] | None = field(default=None, metadata=MORE)
    class_names: tuple[str, ...] | None = field(default=None, metadata=MORE)
    pixel_mean: Annotated[tuple[float, ...] | None, Range(0, 1)] = field(
        default=None, metadata={**MORE, **PIXELS}
    )
    pixel_std: Annotated[tuple[float, ...] | None, Range(above=0, most=1)] = field(
        default=None, metadata={**MORE, **PIXELS}
    )
    image_size: tuple[int, ...] | None = field(
        default=None, metadata={**MORE, "hint": "Example: 224, or 224,320 for height and width."}
    )
    channels: int | None = field(default=None, metadata=MORE)
    weights: str | None = field(default=None, metadata=MORE)
    task: str | None = field(default=None, metadata=MORE)
    metric: str | None = field(default=None, metadata=MORE)
    force: bool = field(default=False, metadata=MORE)
    batch_size: Annotated[int, Range(1, 10**6)] = field(default=64, metadata=MORE)
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    device: str | None = None
    matmul_precision: Literal["highest", "high", "medium"] | None = field(
        default=None, metadata=MORE
    )

    @property
    def torch_device(self) -> str | None:
        """Device of the model: `device`, unless that is the device of a circuit."""
        return self.device

    def __post_init__(self) -> None:
        for each in fields(self):
            check_text(getattr(self, each.name), each.name)
        for name in IN_FILES:
            value = getattr(self, name, None)
            if isinstance(value, Path) or (isinstance(value, str) and value.startswith("~")):
                object.__setattr__(self, name, str(Path(value).expanduser()))
        check_fields(self, type(self).__name__)
        object.__setattr__(self, "out", self.out.expanduser())
        if self.out.is_file():
            raise ConfigError(f"out: '{self.out}' is a file, expected a folder.")
        self._check_pictures()
        self._check_labels()
        if self.text_column is not None and self.text_column == self.label_column:
            raise ConfigError(
                f"text_column: '{self.text_column}' is also the label_column; name one column for "
                "texts and one for labels."
            )
        if self.task is not None:
            from chop.train import find_task

            is_judged = getattr(self, "evaluate", None) is not None
            find_task(self.task).with_metric(None if is_judged else self.metric)

    @property
    def own_functions(self) -> _OwnFunctions:
        """Functions of the user that judge and train; most jobs have none."""
        return _OwnFunctions()

    @property
    def distillation(self) -> Distillation | None:
        """Settings of training against a teacher; most jobs have none."""
        return None

    def _check_labels(self) -> None:
        for name, value in (("label_mean", self.label_mean), ("label_std", self.label_std)):
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name}: got {value}, expected a number.")
            if value is not None and self.task not in (None, "regression"):
                raise ConfigError(f"{name}: applies to regression, and the task is '{self.task}'.")

    def _check_pictures(self) -> None:
        if self.channels not in (None, 1, 3):
            raise ConfigError(f"channels: got {self.channels}, expected 1 (gray) or 3 (RGB).")
        size = self.image_size
        if size is not None and (len(size) not in (1, 2) or min(size) < 1):
            raise ConfigError(
                f"image_size: got {list(size)}, expected one number, or the height and the width."
            )


@dataclass(frozen=True)
class JudgedConfig:
    """Your own functions.

    Attributes:
        evaluate: `file.py:fn`, a function that evaluates the model. It takes the model and returns
            a number; or numbers, one per row, whose mean counts. The file is executed. `metric`
            names the number. Default: the metric of the task.
        lower_is_better: smaller numbers of `evaluate` are better.
        loss: `file.py:fn`, a function that training minimizes. It takes the model's output and the
            labels of a batch, and returns their mean loss. The file is executed. Default: that of
            the task.
    """

    evaluate: str | None = field(default=None, metadata=MORE)
    lower_is_better: bool = field(default=False, metadata=MORE)
    loss: str | None = field(default=None, metadata=MORE)

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        if self.lower_is_better and self.evaluate is None:
            raise ConfigError("lower_is_better: applies to evaluate, which is not set.")

    @property
    def own_functions(self) -> _OwnFunctions:
        """Functions of the user from these settings."""
        return _OwnFunctions(self.evaluate, self.lower_is_better, self.loss)

    @property
    def judged_name(self) -> str | None:
        """Name of the number of `evaluate`; None if the task's metric is used."""
        if self.evaluate is None:
            return None
        metric: str | None = getattr(self, "metric", None)
        return metric or self.evaluate.rpartition(":")[2]


@dataclass(frozen=True)
class DistillConfig:
    """Knowledge distillation in further training.

    Attributes:
        distill: train against the float model (distillation).
        distill_alpha: weight of the float model's outputs, 0 to 1; labels have the rest. Default:
            0.9, and 1 without labels or loss.
        distill_temperature: temperature of the softmax of both models' logits, for classes.
            Default: 2, and 1 for language models.
        distill_hidden: also compare the outputs of layers with equal names, by cosine distance or
            relative mean squared error. Default: mse if a classifier is compressed and its float
            model is the teacher, else none.
        distill_hidden_weight: weight of the loss of layer outputs, which is added. Default: 5.
        distill_teacher: model that replaces the float model as the teacher. It is a run folder, a
            checkpoint, a model folder, a hub name or file.py:Net. Default: the float model.
    """

    EPOCHS: ClassVar[str] = "epochs"
    """Name of the setting with the number of epochs of further training."""
    distill: bool = False
    distill_alpha: Annotated[float | None, Range(0, 1)] = field(default=None, metadata=MORE)
    distill_temperature: Annotated[float | None, Range(above=0, most=1000)] = field(
        default=None, metadata=MORE
    )
    distill_hidden: Literal["cosine", "mse", "none"] | None = field(default=None, metadata=MORE)
    distill_hidden_weight: Annotated[float | None, Range(above=0, most=1e6)] = field(
        default=None, metadata=MORE
    )
    distill_teacher: str | None = field(default=None, metadata=MORE)

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        own = [each for each in fields(DistillConfig) if each.name != "distill"]
        given = [each.name for each in own if getattr(self, each.name) != each.default]
        if given and not self.distill:
            raise ConfigError(f"{given[0]}: applies to distill, which is off.")
        if self.distill and getattr(self, self.EPOCHS) == 0:
            raise ConfigError(f"distill: nothing is trained, since {self.EPOCHS} is 0.")

    @property
    def distillation(self) -> Distillation | None:
        """Settings of training against a teacher, without the teacher; None if `distill` is off."""
        from chop.train.distillation.settings import Distillation

        if not self.distill:
            return None
        return Distillation(
            self.distill_alpha,
            self.distill_temperature,
            self.distill_hidden,
            self.distill_hidden_weight,
        )

    def distill_settings(self) -> dict[str, object]:
        """Returns these settings by name, for a recipe of another job; {} if `distill` is off."""
        names = [each.name for each in fields(DistillConfig)]
        return {name: getattr(self, name) for name in names} if self.distill else {}


@dataclass(frozen=True)
class JudgedWorkloadConfig(JudgedConfig, WorkloadConfig):
    """Settings of a workload that a user's function may judge.

    Combines the settings of `JudgedConfig` and `WorkloadConfig`.
    """
