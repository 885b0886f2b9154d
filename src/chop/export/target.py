"""Target: a kind of file that other engines run; one module of this folder for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.base.installed import require
from chop.captured.layers.experts import expert_layer, matrices_of
from chop.errors import ConfigError
from chop.export.graphs.flat import output_tensors
from chop.ir.graph import MaseGraph
from chop.nn.hadamard import Rotated
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator, pack
from chop.nn.packed.packing import why_not_packable
from chop.nn.quantized import QuantizedOperator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHOWN = 8
"""Modules that an error lists."""
Runner = Callable[[Mapping[str, Any]], Mapping[str, Tensor]]
"""Outputs by name, of inputs by the graph's names."""
SUMS = "sums are added in another order, and numbers next to a tie may be rounded the other way"
"""Why outputs of an engine differ that computes from the same values."""


def nothing_refused(mg: MaseGraph) -> dict[str, str]:
    """Of a target that holds every format, some as floats."""
    return {}


@dataclass(frozen=True)
class Written:
    """What was written for a target.

    Attributes:
        path: of the file or folder.
        files: all that were written.
        notes: sentences on what a user of the files would not expect.
        cause: why outputs differ though the file is right; "" for the reason of its target.
    """

    path: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    cause: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.stat().st_size for file in self.files)


@dataclass(frozen=True)
class Target:
    """A kind of file, and how it is written and read.

    Attributes:
        name: as `--to` takes it.
        engines: that read such files.
        takes: which formats it holds.
        library: the package that reads it back, as it is imported.
        extra: the optional part of chop that installs the library; "" where chop needs it anyway.
        suffix: of the file; "" for a folder.
        write: graph, path, tokenizer or None -> what was written: `files` of a folder, `notes`.
            Raises ConfigError, with every module that it cannot hold, before anything is written.
        read: path -> the model as the library reads it.
        refusals: graph -> by path of a module why the target cannot hold it. Raises ConfigError,
            as `write` does, where it holds no such model, whatever the formats.
        formats: of weights that it holds, as format strings: candidates for what it refuses.
        weights: path -> by path of a module its weight as the target's library decodes it, of a
            layer's shape; matrices may be transposed, or have their rows in groups and filled up.
            None: the library gives none.
        cause: why outputs may differ from those of the graph though the weights are equal.
        weight_cause: why weights may differ; "" for the same reason.
        needs: other packages that writing takes.
        beside: suffixes of other files of the same stem.
        stem: of the file in a folder that has those of other targets, too.
        read_unrounded: path -> the model as the library reads it, no inputs of layers rounded;
            None: the writer compares without roundings.
        is_timed: whether what `read` gives runs as in the engines; else it computes with floats.
        takes_cache: whether the files of decoders have a key-value cache as inputs and outputs.
    """

    name: str
    engines: str
    takes: str
    library: str
    extra: str
    suffix: str
    write: Callable[[MaseGraph, Path, Any], Mapping[str, Any]]
    read: Callable[[Path], Runner]
    refusals: Callable[[MaseGraph], Mapping[str, str]] = nothing_refused
    formats: tuple[str, ...] = ()
    weights: Callable[[Path], Mapping[str, Tensor]] | None = None
    cause: str = SUMS
    weight_cause: str = ""
    needs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    stem: str = "model"
    read_unrounded: Callable[[Path], Runner] | None = None
    is_timed: bool = True
    takes_cache: bool = False

    def export(self, mg: MaseGraph, path: Path, tokenizer: Any = None) -> Written:
        """Writes a graph; a missing suffix is added to the path.

        Args:
            mg: the graph; it stays as it is.
            path: the file or folder.
            tokenizer: of the model, for targets whose engines take text.
        """
        if self.suffix and path.suffix != self.suffix:
            path = path.with_name(path.name + self.suffix)
        found = self.write(mg, path, tokenizer)
        files = found.get("files") or [path.with_suffix(x) for x in (self.suffix, *self.beside)]
        notes, cause = tuple(found.get("notes", ())), found.get("cause", "")
        return Written(path, tuple(files), notes, cause)

    def require(self) -> None:
        """Raises an error where a package is not installed.

        Raises:
            UnavailableError: with the command that installs it.
        """
        require(self.name, self.library, *self.needs, extra=self.extra)


KNOWN_CODE = ("torch", "transformers", "transformers_modules", "chop")
"""Packages of modules that an architecture is made of, those that a folder brings among them."""
ROTATED = (
    "it rotates its input while the model runs, which no engine does for a weight alone: "
    "rotate_transform_pass with online=False leaves that out"
)


def packed_model(
    mg: MaseGraph, target: str, rounds_inputs: bool = False
) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model of transformers that a graph stands for, its quantized layers packed.

    Args:
        mg: the graph; it stays as it is, and shares its tensors.
        target: for messages.
        rounds_inputs: whether packed linear layers may round their inputs.
    Returns: the model, and by path of a module why a file of weights alone cannot hold it,
        whatever its format.

    Raises:
        ConfigError: the graph is of no model of transformers, or of one with a forward of its own,
            or nothing in it is quantized.
        GraphError: the model cannot be given back, see `MaseGraph.to_module`.
    """
    from transformers import PreTrainedConfig, PreTrainedModel

    from chop.ir.huggingface.stored import drop_masks
    from chop.quantization.packing import Selection, pack_layers

    if not isinstance(mg.model.record.config, PreTrainedConfig):
        raise _not_of_transformers(target, mg.model.record.class_name)
    packed, floats, nothing = mg.sharing_copy(), dict[str, str](), None
    try:
        _, floats = pack_layers(packed, Selection(), exact=False)
    except ConfigError as error:  # but a layer that is tied to a float one can part from it
        nothing = error
    model = packed.to_module().eval()
    _pack_tied(model)
    if nothing is not None and not packed_layers(model):
        raise nothing
    if not isinstance(model, PreTrainedModel):
        raise _not_of_transformers(target, type(model).__name__)
    drop_masks(model)
    _check_code(model, target)
    return model, _reasons(model, floats, rounds_inputs)


def _not_of_transformers(target: str, class_name: str) -> ConfigError:
    return ConfigError(
        f"{target}: expected a model of transformers, which its engines run by code of their own, "
        f"got a {class_name}; onnx and pt2 hold the graph of any model."
    )


def _check_code(model: nn.Module, target: str) -> None:
    """Checks that the model runs no code but that of its architecture, which engines have.

    Raises:
        ConfigError: with the module whose `forward` is somebody else's.
    """
    for path, module in model.named_modules():
        home = module.forward.__module__.partition(".")[0]
        if home not in KNOWN_CODE:
            raise ConfigError(
                f"{target}: expected the code of an architecture of transformers, which engines "
                f"implement themselves, got {path or 'a model'} with the forward of "
                f"{type(module).__name__} in {module.forward.__module__}, which the file would "
                "lose; onnx and pt2 hold the graph of any model."
            )


def _pack_tied(model: nn.Module) -> None:
    """Packs layers that share their weight with a float one, from which they part."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, QuantizedOperator) and why_not_packable(module) is None:
            model.set_submodule(path, pack(module))


def runner_of(model: nn.Module) -> Runner:
    """A model of transformers as what gives outputs by name."""

    @torch.no_grad()
    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        return output_tensors(model(**inputs))

    return answers


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model's layers by path, decoded where they are packed.

    Fused experts are the layers that they can be made of.
    """
    found: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found[path] = getattr(module, "weight", None)
        for name, layer in matrices_of(module).items():
            weight = module.get_parameter(name)
            found[f"{path}.{layer}"] = expert_layer(module, name, weight, {}).weight
    return {path: x.detach() for path, x in found.items() if isinstance(x, Tensor)}


def packed_layers(model: nn.Module) -> dict[str, PackedOperator]:
    """The packed layers of a model by path; tied ones at each of their paths."""
    named = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in named if isinstance(module, PackedOperator)}


def _reasons(model: nn.Module, floats: Mapping[str, str], rounds_inputs: bool) -> dict[str, str]:
    """What `packed_model` returns; `floats` has why layers could not be packed."""
    found = {
        path: _reason(module, floats.get(path, "has no packed form"), rounds_inputs)
        for path, module in model.named_modules()
        if isinstance(module, QuantizedOperator)
    }
    found |= {path: ROTATED for path, m in model.named_modules() if isinstance(m, Rotated)}
    return {path: reason for path, reason in found.items() if reason is not None}


def _reason(module: QuantizedOperator, why_float: str, rounds_inputs: bool) -> str | None:
    if isinstance(module, LoraLinear):
        return "it has an adapter: fuse it with fuse_lora_weights_transform_pass first"
    packed_linear = isinstance(module, PackedOperator) and isinstance(module, nn.Linear)
    allowed = ["data_in"] if rounds_inputs and packed_linear else []
    for name, what in {"data_in": "inputs", "data_out": "results"}.items():
        quantizer = module.format_of(name)
        if not quantizer.is_identity and name not in allowed:
            return f"it rounds its {what} to {quantizer.label}"
    if not isinstance(module, PackedOperator) and not module.spec.is_float:
        return f"it is quantized and cannot be packed: it {why_float}"
    return None


def refuse(target: str, reasons: Mapping[str, str], way_out: str) -> None:
    """Raises an error that lists modules which a target cannot hold; none: nothing.

    Args:
        target: its name.
        reasons: by path of a module.
        way_out: a sentence.

    Raises:
        ConfigError: there are some.
    """
    if not reasons:
        return
    lines = [f"  {path}: {why}" for path, why in list(reasons.items())[:SHOWN]]
    if len(reasons) > SHOWN:
        lines.append(f"  and {len(reasons) - SHOWN} more")
    modules = f"{len(reasons)} module{'s' if len(reasons) > 1 else ''}"
    raise ConfigError("\n".join([f"{target} cannot hold {modules}:", *lines, way_out]))
