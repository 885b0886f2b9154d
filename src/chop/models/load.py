"""Model loader for built-in models, local folders, hub names, timm and user code."""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from chop.base.files.documents import read_json
from chop.base.files.library_errors import get_reason, is_of_library, library_errors
from chop.base.hub import hub_folder, hub_is_reachable
from chop.base.installed import fitting_packages
from chop.base.trust import confirmation
from chop.config import Range, convert, with_checked_arguments
from chop.data.builtin_names import advice_of_builtin, report_choice
from chop.errors import (
    SURE,
    CheckpointError,
    ChopError,
    ConfigError,
    UnavailableError,
    did_you_mean,
    first_line,
)
from chop.export.foreign.loading import fresh_model
from chop.export.foreign.readers import check_method, get_reader, load
from chop.export.gguf.header import gguf_file
from chop.export.qonnx.reader import is_qonnx, read_module
from chop.ir.huggingface.architecture import check_architectures, named_class
from chop.ir.huggingface.config_file import (
    check_config,
    config_errors,
    describe_missing_key,
    without_fetched_code,
)
from chop.ir.huggingface.folder_files import check_shards
from chop.ir.huggingface.generation_file import check_generation_config, read_generation_config
from chop.ir.huggingface.unread import Unread
from chop.ir.storage.checkpoint import FILE_IN_RUN, find_checkpoint
from chop.models.builtin import BUILTIN_MODELS, builtin_model
from chop.models.own import build_own, is_own
from chop.models.places import get_place
from chop.models.stored_numbers import check_numbers
from chop.private.transformers_api import failed_conversions, without_load_report
from chop.runs import MANIFEST, read_manifest

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

log = logging.getLogger(__name__)

FOREIGN_SUFFIXES = (".h5", ".hdf5", ".keras", ".tflite", ".pb")
"""Suffixes of models of other libraries, which neither chop nor torch reads."""
TIMM_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)?")
"""Name that may be one of timm, such as `resnet50.a1_in1k`."""
NO_SOURCES = {
    ".ipynb": "a notebook",
    ".onnx": "an ONNX file",
    ".pyc": "compiled Python",
    ".txt": "a text file",
}
"""Kinds of files that some write for the Python file of a class, by suffix."""
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
"""Suffixes of files that may be state dicts."""
PEFT_CLASSES = {
    "CAUSAL_LM": "ForCausalLM",
    "SEQ_2_SEQ_LM": "ForSeq2SeqLM",
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "ForFeatureExtraction",
}
"""End of the name of peft's `AutoPeftModel` class for each task type of an adapter."""
AUTO_CLASSES = {
    "text-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "text-generation": "AutoModelForCausalLM",
    "token-classification": "AutoModelForTokenClassification",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "fill-mask": "AutoModelForMaskedLM",
    "feature-extraction": "AutoModel",
}


def continues_texts(model: nn.Module | str) -> bool:
    """Returns true for causal language models of transformers.

    Args:
        model: the model, the graph of one, or the name of its class.
    """
    if isinstance(model, str):
        return model.endswith(("ForCausalLM", "LMHeadModel"))
    record = getattr(model, "record", None)
    return continues_texts(getattr(record, "class_name", type(model).__name__))


@with_checked_arguments
@fitting_packages()
def load_model(
    name_or_path: str | Path,
    *,
    num_labels: int | None = None,
    task: str | None = None,
    pretrained: bool = True,
    weights: str | Path | None = None,
    seed: Annotated[int, Range(0)] = 0,
) -> nn.Module:
    """Loads a model in evaluation mode: built-in, Hugging Face, timm, or your own.

    `file.py:Net` executes that file and builds its class or function `Net`; `timm:NAME` is a model
    of timm; see `chop.models.own`.

    Args:
        name_or_path: a built-in name (`mlp`, `cnn`, `vit`, `bert-tiny`, `gpt-tiny`; untrained,
            `chop.train.load_trained` trains them), a folder of `save_pretrained`, a folder of
            compressed-tensors, GPTQ, AWQ, ModelOpt or FP8, a GGUF file or a folder with only one,
            the hub name of any of these, `org/name/file.gguf` on the hub, a QONNX file (`.onnx`),
            `file.py:Net`, or `timm:NAME`. A folder with a model takes precedence over a built-in
            name; `builtin:cnn` always selects the built-in model.
        num_labels: classes of the classification head; by default those of the model.
        task: `text-classification`, `image-classification`, `token-classification`,
            `semantic-segmentation`, `text-generation`, `fill-mask` or `feature-extraction`. The
            default is the class of the checkpoint, or a classifier if `num_labels` is given.
            Built-in models have a fixed task.
        pretrained: False draws fresh weights from `seed` and reads only the configuration.
        weights: state dict (.safetensors or .pt) of `file.py:Net` and `timm:NAME`.
        seed: seed of random weights; the global generator is not changed.
    Returns: a module called with keywords, whose output has `logits`, and `loss` if labels are
        given. Models of user code or timm are returned as they are. The logger `chop.models` warns
        of weights that the checkpoint lacks, such as those of a new head.
    Raises:
        ConfigError: if the task is unknown, or a folder holds no model.
        CheckpointError: if the weights cannot be read, or have fewer layers than the model.
        UnavailableError: if a hub name is neither in the local hub cache nor reachable.

    Example:
        >>> load_model("bert-tiny").config.num_hidden_layers
        2
    """
    if task is not None and task not in AUTO_CLASSES:
        raise ConfigError(f"unknown task '{task}': {did_you_mean(task, AUTO_CLASSES)}")
    name = str(convert(name_or_path, str | Path, "model"))
    num_labels = convert(num_labels, Annotated[int | None, Range(1)], "num_labels")
    if weights is not None and not is_own(name):
        raise ConfigError(
            f"weights: '{name}' has its own weights; only file.py:Net and timm:NAME take some."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        builtin = builtin_model(name)
        report_choice(name, BUILTIN_MODELS, "model", builtin)
        if builtin is not None:
            return _build(builtin, num_labels).eval()
        if is_qonnx(name):
            return _from_qonnx(name, pretrained)
        if is_own(name):
            return build_own(name, num_labels, weights, pretrained).eval()
        return _from_checkpoint(name, num_labels, task, pretrained).eval()


def _build(name: str, num_labels: int | None) -> nn.Module:
    builtin = BUILTIN_MODELS[name]
    if num_labels not in (None, builtin.num_labels) and builtin.task == "causal-lm":
        raise ConfigError(
            f"num_labels: '{name}' predicts the next token, one of {builtin.num_labels}; got "
            f"{num_labels}."
        )
    return builtin.build(builtin.num_labels if num_labels is None else num_labels)


def _from_qonnx(name: str, pretrained: bool) -> nn.Module:
    if not pretrained:
        raise ConfigError(f"pretrained: '{name}' has its weights in its graph; expected True.")
    return read_module(Path(name).expanduser())


def _from_checkpoint(
    name: str, num_labels: int | None, task: str | None, pretrained: bool
) -> nn.Module:
    place, wants_labels = get_place(name), num_labels is not None
    settings = {"num_labels": num_labels} if wants_labels else {}
    choose = partial(get_model_class, task=task, wants_labels=wants_labels)
    if pretrained and gguf_file(place) is not None:
        return load(place, choose, **settings)
    is_coded = get_reader(place) is not None
    config = read_config(str(place) if is_coded else name, num_labels)
    model_class = choose(config)
    if not pretrained:
        vars(config).pop("quantization_config", None)  # fresh weights are floats
        with library_errors(place):
            return fresh_model(model_class, config)
    if is_coded:
        return load(place, choose, **settings)
    check_method(config, f"'{name}'")
    return _read_weights(model_class, name, config, new_head=wants_labels)


def _read_weights(
    model_class: Any, name: str, config: PreTrainedConfig, *, new_head: bool
) -> nn.Module:
    from safetensors import SafetensorError

    from chop.ir.huggingface.conversions import names_in

    check_generation_config(name)
    model: nn.Module
    tables: list[str] = []
    hint = "expected model.safetensors (in Python, pretrained=False draws fresh ones)"
    try:
        with without_load_report() as tables:  # reported below
            model, report = model_class.from_pretrained(
                name,
                config=config,
                local_files_only=not hub_is_reachable(),
                ignore_mismatched_sizes=True,  # to report all of them
                output_loading_info=True,
                trust_remote_code=False,  # by default it asks on the terminal
            )
    except OSError as error:
        _check_is_no_adapter(Path(name))
        for index in sorted(Path(name).glob("*.index.json")):
            check_shards(index, read_json(index, "index")["weight_map"].values())
        raise _missing_error(name, "weights", hint=hint) from error
    except (SafetensorError, RuntimeError) as error:
        reason = failed_conversions(tables) or first_line(error)
        raise CheckpointError(f"'{name}': the weights cannot be read: {reason}") from error
    except ChopError as error:
        if name in str(error):
            raise
        raise type(error)(f"'{name}': {error}") from error
    except BaseException as error:
        if not is_of_library(error):
            raise
        reason = describe_missing_key(config, error) or get_reason(error)
        message = f"'{name}': transformers cannot build the model: {reason}."
        raise ConfigError(message) from error
    notes = Unread.from_report(report).check(model, f"'{name}'", new_head)
    if getattr(model, "hf_quantizer", None) is None:
        folder = Path(name) if Path(name).is_dir() else hub_folder(name) or Path(name)
        notes += check_numbers(model, folder, names_in, f"'{name}'")
    for note in notes:
        log.warning("%s: %s", name, note)
    read_generation_config(model, name)
    return model


def saved_model(run: Path) -> Path | None:
    """Returns the transformers folder of a run that saves one, such as of `chop prune`, or None.

    Runs of `chop compress` are excluded, since their folder has a compressed model.
    """
    folder = run / FILE_IN_RUN
    with contextlib.suppress(CheckpointError):
        if (folder / "config.json").is_file() and read_manifest(run).kind != "compress":
            return folder
    return None


def _why_none(folder: Path) -> str:
    """Describes the command that wrote a folder without a model; "" if none did."""
    if not (folder / MANIFEST).is_file():
        return ""
    with contextlib.suppress(CheckpointError):
        manifest = read_manifest(folder)
        kind, storage = manifest.kind, manifest.settings.get("storage")
        if kind == "search precision":
            text = shlex.quote(str(folder))
            if storage:
                text = f"{shlex.quote(str(storage))} --name {shlex.quote(folder.name)}"
            trust = confirmation(manifest.settings)
            return (
                f"chop {kind} wrote it; run chop search export {text} best.toml{trust}, then "
                f"chop compress --config best.toml{trust}; "
            )
        if saved := saved_model(folder):
            return f"chop {kind} wrote it; pass its model '{saved}'; "
        if (folder / "best").is_dir():
            return f"chop {kind} wrote it, and its best models in '{folder / 'best'}'; "
        if kind != "compress":
            return f"chop {kind} wrote it; "
        if find_checkpoint(folder):
            given = shlex.quote(str(manifest.settings.get("model")))
            return f"chop compress saved a quantized model in it; pass the float model, {given}; "
    return "its run saved none, or did not finish; "


def _check_is_no_adapter(folder: Path) -> None:
    """Raises ConfigError if a folder holds an adapter of PEFT without its base model."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    with library_errors(file, error=ConfigError):
        settings = read_json(file, "config")
    base = settings.get("base_model_name_or_path", "unknown")
    loader = f"AutoPeftModel{PEFT_CLASSES.get(str(settings.get('task_type')), '')}"
    is_path = str(base).startswith((".", "/", "~")) or str(base).count("/") > 1
    is_moved = is_path and not Path(base).is_dir()
    moved = f"There is no folder '{base}': correct base_model_name_or_path in '{file}'. "
    raise ConfigError(
        f"folder '{folder}' contains no model: it has a PEFT adapter for the base model "
        f"'{base}'. {moved * is_moved}Merge the two, such as with "
        f"peft.{loader}.from_pretrained('{folder}')"
        ".merge_and_unload().save_pretrained('merged'), save the tokenizer there, and pass "
        "'merged' as the model."
    )


@fitting_packages()
@with_checked_arguments
def read_config(name: str, num_labels: int | None = None) -> PreTrainedConfig:
    """Returns the configuration of a local folder or hub name.

    Args:
        name: local folder, `.gguf` file or hub name.
        num_labels: number of classes. Default: as in the configuration.

    Raises:
        ConfigError: if the folder holds no configuration or an unknown one, or is a file.
        UnavailableError: if a hub name is neither in the local cache nor reachable.
    """
    from transformers import AutoConfig

    is_folder, place = Path(name).is_dir(), get_place(name)
    if gguf_file(place) is not None:
        return _read_gguf_config(place, num_labels)
    _check_source(name)
    if ".py:" in name:
        raise ConfigError(f"model '{name}': expected a class or function, such as net.py:Net.")
    checkpoint = name.removesuffix(".pt").removesuffix(".mz")
    if Path(f"{checkpoint}.mz").is_file():
        raise ConfigError(
            f"model '{name}' is a checkpoint of chop: load it with "
            f"MaseGraph.from_checkpoint('{checkpoint}')."
        )
    if Path(name).is_file():
        if name.lower().endswith(FOREIGN_SUFFIXES):
            raise ConfigError(f"model '{name}': expected a PyTorch model, such as file.py:Net.")
        if name.endswith(".py"):
            as_own = f"{name}:Net"
        elif Path(name).suffix.lower() not in WEIGHT_SUFFIXES:
            as_own = "file.py:Net"
        else:  # other commands may have no option for weights
            as_own = f"file.py:Net (`chop compress` reads its weights with --weights {name})"
        raise ConfigError(
            f"model '{name}' is a file: pass its class as well, such as {as_own}, or the folder of "
            "a Hugging Face model."
        )
    if is_folder and not (Path(name) / "config.json").is_file():
        _check_is_no_adapter(Path(name))
        raise ConfigError(
            f"folder '{name}' contains no model: {_why_none(Path(name))}expected a config.json in "
            f"it.{advice_of_builtin(name, BUILTIN_MODELS)}"
        )
    if is_folder:
        check_config(Path(name))
    labels = {} if num_labels is None else {"num_labels": num_labels}
    local = is_folder or not hub_is_reachable()
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            # By default it asks on the terminal whether to run a folder's code.
            name,
            local_files_only=local,
            trust_remote_code=False,
            **labels,
        )
    except config_errors() as error:
        if not is_folder:
            raise _missing_error(name, "a model") from error
        message = f"folder '{name}' contains no known model: {get_reason(error)}."
        if num_labels == 1 and "problem_type" in str(error):
            message = (
                f"'{name}' is a classifier, and these labels need one output: check the label "
                "column, the task, and that there are two classes; or remove problem_type from "
                "config.json to train a new head."
            )
        raise ConfigError(message) from error
    check_architectures(config, f"'{name}'")
    without_fetched_code(config, f"'{name}'")
    return config


def _check_source(name: str) -> None:
    """Raises ConfigError for a class in a file that is not Python source, such as a notebook."""
    file, _, named = name.rpartition(":")
    place = Path(file or name)
    suffix, is_class = place.suffix.lower(), named.isidentifier()
    is_weights = is_class and suffix in WEIGHT_SUFFIXES
    kind = "a file of weights" if is_weights else NO_SOURCES.get(suffix)
    if kind is None or not (is_class or place.is_file()):
        return
    own = f"{place.with_suffix('.py')}:{named if is_class else 'Net'}"
    weights = f" --weights {place}" * is_weights
    raise ConfigError(
        f"model '{name}': '{place}' is {kind}, and a class has to be in a .py file: put it in one, "
        f"and pass {own}{weights}."
    )


def _read_gguf_config(path: Path, num_labels: int | None) -> PreTrainedConfig:
    from chop.export.gguf import reader as gguf_reader

    config: PreTrainedConfig = gguf_reader.read_config(path)
    if num_labels is not None:
        config.num_labels = num_labels
    return config


def _missing_error(name: str, what: str, hint: str = "") -> UnavailableError:
    where = "there" if Path(name).is_dir() else "in a local folder, in the hub cache or on the hub"
    reach = "" if hub_is_reachable() or Path(name).is_dir() else " (the hub cannot be reached)"
    file, _, named = name.rpartition(":")
    if not file:  # as in an import: package.net.Net
        file, _, named = name.replace(".", "/").rpartition("/")
    if Path(f"{file}.py").is_file():
        hint = f"did you mean '{file}.py:{named}'?"
    elif ":" in name and named.isidentifier():
        hint = (
            f"pass a local folder. A class of your own has to be in a .py file, as in "
            f"{file}.py:{named}, and a timm model is timm:NAME"
        )
    place = Path(name).expanduser()
    if len(place.parts) > 1 and place.parent.is_dir():
        near = get_close_matches(place.name, [x.name for x in place.parent.iterdir()], 1, SURE)
        hint = hint or "".join(f"did you mean '{place.with_name(each)}'?" for each in near)
    is_plain = TIMM_NAME.fullmatch(name) and not Path(name).is_dir()
    timm = f"a timm model as 'timm:{name}', " if is_plain else ""
    suggestion = hint or (
        f"pass a local folder, {timm}or a built-in: {did_you_mean(name, BUILTIN_MODELS)}"
    )
    return UnavailableError(f"'{name}': {what} not found {where}{reach}; {suggestion}")


def get_model_class(config: PreTrainedConfig, task: str | None, *, wants_labels: bool) -> Any:
    """Returns the transformers class that builds the model: its own or an `AutoModel...`."""
    import transformers

    seeing = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    has_vision = getattr(config, "vision_config", None) is not None
    if task == "text-generation" and has_vision and type(config) in seeing:
        return transformers.AutoModelForImageTextToText
    if task is not None:
        return getattr(transformers, AUTO_CLASSES[task])
    if wants_labels:
        images = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
        kind = "image-classification" if type(config) in images else "text-classification"
        return getattr(transformers, AUTO_CLASSES[kind])
    return named_class(config, f"'{config.name_or_path}'") or transformers.AutoModel
