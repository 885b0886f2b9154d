"""`MaseGraph`: a captured model with methods to inspect, edit, draw and save it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from torch import fx, nn

from chop.base.files import Picture
from chop.capture.inputs import check_example, check_parameters
from chop.captured.module import CapturedModule
from chop.captured.nodes.modes import mode_paths, settle
from chop.captured.overrides import why_not_copyable
from chop.captured.wrappers import check_has_forward, check_has_python, unwrapped
from chop.config import convert, with_checked_arguments, with_checked_names
from chop.errors import ConfigError, GraphError, did_you_mean
from chop.ir.difference import difference_lines
from chop.ir.graph.guess import ProvisionalCapture, check_names, explain_mismatch
from chop.ir.metadata import Provenance, attach
from chop.ir.nodes import get_node_by_name
from chop.ir.ops import OPS, Operator, get_node_row, module_of_node
from chop.nn.quantized import QuantizedOperator
from chop.private.graph_edits import last_edit
from chop.private.modules import own_children


class MaseGraph:
    """Model as a graph of module-level nodes; the model stays usable and trainable.

    Args:
        model: any `nn.Module` or Hugging Face `PreTrainedModel`. Its parameters are shared, not
            copied.
        cf_args: arguments of `forward` to fix at capture, by name.
        custom_ops: modules to capture as single nodes: classes, dotted paths, or MASE's
            `{"modules": {class: ...}}`. Modules of registered operators always are.
        hf_input_names: arguments of `forward` that become inputs of the graph; by default those
            of the model's main task. `labels` makes the loss part of the graph. A decoder's graph
            also takes a key-value cache if this is None or contains `cache` (`past_key_values`
            before transformers 5.24); `mg.model.generate` needs it.
        dummy_in: example inputs by argument name. By default, inputs of a Hugging Face model are
            made from its configuration, and those of other models are guessed from the first
            layer. A guessed graph is captured again if it does not fit the `dummy_in` of
            `add_common_metadata_analysis_pass`. If the guess fails, operations on the graph ask
            for `dummy_in`.
        strict: raise an error if part of the model cannot be captured, instead of keeping that
            module as a single node.

    Raises:
        CaptureError: if the model cannot be captured. The message has the line of code and a fix.

    Example:
        >>> from torch import nn, ones
        >>> mg = MaseGraph(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
        >>> [node.target for node in mg.nodes if node.op == "call_module"]
        ['0', '1']
        >>> mg.model(ones(3, 4)).shape
        torch.Size([3, 2])
    """

    @with_checked_names
    def __init__(
        self,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Any] | Iterable[type[nn.Module] | str] | None = None,
        hf_input_names: Collection[str] | None = None,
        *,
        dummy_in: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> None:
        check_has_forward(model, "MaseGraph")
        model = unwrapped(model)
        check_has_python(model)
        self._guess: ProvisionalCapture | None = None
        self._captured: CapturedModule | None = None
        self._compiled_edit = 0
        self.provenance: list[Provenance] = []
        if isinstance(model, CapturedModule):
            self._set_captured(model)
            return
        fixed = dict(convert(cf_args, Mapping[str, Any] | None, "cf_args") or {})
        asked = convert(hf_input_names, Collection[str] | None, "hf_input_names")
        names = None if asked is None else tuple(asked)
        strict = convert(strict, bool, "strict")
        check_parameters(model, fixed)
        guess = ProvisionalCapture(model, names, _leaves(custom_ops), fixed, strict)
        if dummy_in is not None:
            self._set_captured(guess.recapture(dummy_in, None))
            return
        self._guess = guess
        self._set_captured(guess.capture())

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises GraphError: the captured model is called, and not its graph."""
        raise GraphError("a MaseGraph cannot be called: call its model, mg.model(x).")

    if not TYPE_CHECKING:  # for a type checker, unknown attributes stay errors

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError, with the place of what the model has."""
            is_of_model = not name.startswith("_") and hasattr(self._captured, name)
            hint = f"; use mg.model.{name}" if is_of_model else "; use mg.export" * (name == "save")
            raise AttributeError(f"a MaseGraph has no attribute '{name}'{hint}", name=name)

    def _set_captured(self, model: CapturedModule | None) -> None:
        self._captured = model
        self._compiled_edit = 0 if model is None else last_edit(model.graph)
        attach(() if model is None else model.graph.nodes)

    @property
    def _model(self) -> CapturedModule:
        if self._captured is None:
            assert self._guess is not None and self._guess.failure is not None
            raise self._guess.failure
        return self._captured

    @property
    def is_captured(self) -> bool:
        """True if a graph exists; guessed inputs may not fit the model."""
        return self._captured is not None

    def fit(self, dummy_in: Mapping[str, Any]) -> bool:
        """Adapts the graph to an example.

        A graph from guessed inputs that does not fit the example is captured again.

        Args:
            dummy_in: example inputs by argument name.
        Returns: True if the graph is new and has no metadata.

        Raises:
            GraphError: if the graph does not fit the example and cannot be captured again, because
                its inputs were not guessed or it has been changed since.
        """
        check_example(dummy_in, "dummy_in")
        given = {name: value for name, value in dummy_in.items() if value is not None}
        if self._guess is None:
            check_names(self._model, given)
            reason = explain_mismatch(self._model, given)
            if reason is not None:
                guessed = " from guessed inputs" if self._model.record.guessed else ""
                raise GraphError(f"dummy_in does not fit the graph, captured{guessed}: {reason}.")
            return False
        made = self._guess.recapture(given, self._captured)
        if made is self._captured:
            return False
        self._set_captured(made)
        return True

    @classmethod
    def from_module(
        cls,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Any] | Iterable[type[nn.Module] | str] | None = None,
        hf_input_names: Collection[str] | None = None,
    ) -> MaseGraph:
        """Constructs a graph; MASE's name for the constructor."""
        return cls(model, cf_args, custom_ops, hf_input_names)

    @property
    def model(self) -> CapturedModule:
        """The model that runs the graph; always up to date with its nodes."""
        model = self._model
        edit = last_edit(model.graph)
        if edit != self._compiled_edit:
            model.recompile()
            self._compiled_edit = edit
        return model

    @model.setter
    def model(self, model: CapturedModule) -> None:
        if not isinstance(model, CapturedModule):
            raise GraphError(
                f"mg.model: expected a captured model, got {type(model).__name__}; for another "
                "model make another MaseGraph."
            )
        self._captured, self._guess = model, None
        self._compiled_edit = 0

    @property
    def fx_graph(self) -> fx.Graph:
        """The `torch.fx.Graph`, which you can edit freely."""
        return self._model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self._model.graph = graph
        self._compiled_edit = last_edit(graph)

    @property
    def nodes(self) -> list[fx.Node]:
        """The nodes in execution order."""
        return list(self._model.graph.nodes)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules by dotted path."""
        return dict(self._model.named_modules())

    @with_checked_arguments
    def node(self, name: str) -> fx.Node:
        """Returns the node with a name.

        Raises:
            GraphError: if there is no such node.
        """
        return get_node_by_name(self, name)

    def get_module(self, node: fx.Node) -> nn.Module | None:
        """Returns the module of a `call_module` node; None for other nodes.

        Raises:
            GraphError: if it is no node.
        """
        _check_is_node(node, "mg.get_module")
        return module_of_node(node, self._model)

    def operator(self, node: fx.Node) -> Operator:
        """Returns the row of the operator table that describes a node.

        Raises:
            GraphError: if it is no node.
        """
        _check_is_node(node, "mg.operator")
        return get_node_row(node, self._model)

    def copy(self) -> MaseGraph:
        """Returns an independent copy of nodes, metadata, parameters and buffers."""
        return copy.deepcopy(self)

    def sharing_copy(self) -> MaseGraph:
        """Returns a copy with its own nodes and modules that shares parameters and buffers.

        Use it for passes that replace modules and do not write into tensors: the copy takes no
        memory for weights. Use `copy()` to train one of the two.

        Example:
            >>> from torch import nn
            >>> mg = MaseGraph(nn.Linear(4, 2))
            >>> twin = mg.sharing_copy()
            >>> twin.model is mg.model, next(twin.model.parameters()) is next(mg.model.parameters())
            (False, True)
        """
        shared = (*self.model.parameters(), *self.model.buffers())
        return copy.deepcopy(self, {id(tensor): tensor for tensor in shared})

    def __deepcopy__(self, memo: dict[int, Any]) -> MaseGraph:
        if self._captured is None and self._guess is not None:
            twin = MaseGraph.__new__(MaseGraph)
            twin.__dict__ = {
                "_captured": None,
                "_compiled_edit": 0,
                "_guess": copy.deepcopy(self._guess, memo),
            }
            twin.provenance = list(self.provenance)
            return twin
        reason = why_not_copyable(self.model)
        if reason is not None:
            raise GraphError(f"the graph's model cannot be copied: {reason}.")
        twin = MaseGraph(copy.deepcopy(self.model, memo))
        twin.provenance = list(self.provenance)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # The captured module pickles the capture's own metadata of nodes, not those of passes.
        metadata = [node.meta.get("mase") for node in self.nodes]
        return {"model": self.model, "provenance": self.provenance, "metadata": metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._guess = None
        self._set_captured(state["model"])
        self.provenance = state["provenance"]
        for node, metadata in zip(self.nodes, state["metadata"], strict=True):
            if metadata is not None:
                node.meta["mase"] = metadata
        attach(self.nodes)

    def replace(self, node: fx.Node, module: nn.Module) -> None:
        """Makes a node call `module` instead.

        A `call_module` node keeps its path, so `state_dict` keys stay; a module at several paths is
        replaced at each. A function or method call becomes a `call_module` node with the same
        arguments, next to the module that called it. The new module takes over the training mode.

        Raises:
            GraphError: if `module` is not a module, or `node` not a node.
        """
        if not isinstance(module, nn.Module):
            raise GraphError(f"mg.replace: expected an nn.Module, got {type(module).__name__}.")
        self._check_is_own(node, "mg.replace")
        old = self.get_module(node)
        if old is None:
            stack = list(node.meta.get("nn_module_stack", ()))
            node.target = self._free_path(stack[-1] if stack else "", node.name)
            path, _, name = node.target.rpartition(".")
            parent = self._model.get_submodule(path)
            parent.add_module(name, module.train(parent.training))
            node.op = "call_module"
        else:
            module.train(old.training)
            for parent in list(self._model.modules()):
                for name, child in own_children(parent).items():
                    if child is old:
                        own_children(parent)[name] = module

    def _check_is_own(self, node: fx.Node, where: str) -> None:
        _check_is_node(node, where)
        if node.graph is not self.fx_graph:
            raise GraphError(
                f"{where}: node '{node.name}' is of another graph; mg.node({node.name!r}) finds "
                "the one of this graph."
            )

    def erase(self, node: fx.Node) -> None:
        """Removes a node; its users read its first input instead.

        Raises:
            GraphError: if it is no node of this graph, or has users and no input.
        """
        self._check_is_own(node, "mg.erase")
        if node.users:
            if not node.all_input_nodes:
                raise GraphError(f"node '{node.name}' has users and no input to put in its place.")
            node.replace_all_uses_with(node.all_input_nodes[0])
        self._model.graph.erase_node(node)

    def keep_evaluation(self, reason: str) -> None:
        """Erases the nodes that run only in `train()`, for programs that run in `eval()`.

        Args:
            reason: reason in the error of a call in `train()`.
        """
        if mode_paths(self.fx_graph):
            settle(self.fx_graph, lambda path: False)
            self._model.record.eval_only = reason
            self._model.record.training_guards = []

    def diff(self, other: MaseGraph) -> list[str]:
        """Returns one line per node that is removed, new or different in `other`.

        Raises:
            GraphError: if `other` is not a graph.
        """
        if not isinstance(other, MaseGraph):
            raise GraphError(f"mg.diff: expected a MaseGraph, got {type(other).__name__}.")
        return list(difference_lines(self.model, other.model))

    @with_checked_arguments
    def draw(
        self,
        file: str | Path = "mase_graph.svg",
        depth: int | None = None,
        compare: MaseGraph | None = None,
    ) -> Picture:
        """Draws the graph as an SVG file, which notebooks display; see `chop.ir.drawing.draw`.

        Args:
            file: path of the picture; the suffix `.svg` is added if it is missing. Parent folders
                are created.
            depth: levels of modules to unfold; None unfolds as much as stays readable.
            compare: second graph; its new, removed and changed nodes are colored as in `diff`, and
                the others are grey in folded modules.

        Raises:
            ConfigError: if `compare` is not a graph.
        """
        from chop.ir.drawing.draw import draw

        if compare is None:
            return draw(self.model, file, depth)
        return draw(self.model, file, depth, compare.model)

    def to_module(self, like: nn.Module | None = None) -> nn.Module:
        """Returns a model of the original class with the graph's operators.

        The graph and the captured model are not changed; tensors are shared with the graph. The
        result has `forward`, `generate` and all other methods of its class. Quantized attention
        products go through transformers' attention functions.

        Args:
            like: model of the original class and settings, whose weights are not read. The graph of
                a checkpoint needs one, except for transformers classes.
        Returns: a model of the original class, in the graph's mode; what is in eval mode in `like`
            is in eval mode.

        Raises:
            GraphError: if the class is unknown, or its `forward` cannot make a change of the graph.

        Example:
            >>> from torch import nn
            >>> type(MaseGraph(nn.Sequential(nn.Linear(4, 2), nn.ReLU())).to_module()).__name__
            'Sequential'
        """
        from chop.ir.graph.to_module import to_module

        return to_module(self.model, self.provenance, like)

    @with_checked_arguments
    def save_pretrained(
        self, folder: str | Path, tokenizer: Any = None, max_shard_size: int | str = "5GB"
    ) -> None:
        """Writes a folder for transformers' `from_pretrained`; packed layers stay packed.

        Loading it needs chop installed and `import chop`; see `chop.ir.huggingface.folder`.

        Args:
            folder: destination; missing folders are created.
            tokenizer: tokenizer or processor whose files are saved as well; None saves none.
            max_shard_size: maximum size of a weight file; larger ones are split.

        Raises:
            GraphError: if the model cannot be reconstructed, see `to_module`.
            ConfigError: if it is not a Hugging Face model, or a layer cannot be described by
                formats.
        """
        from chop.ir.huggingface.folder import save_folder

        save_folder(self.to_module(), folder, tokenizer, max_shard_size)

    @with_checked_arguments
    def export(
        self,
        fname: str | Path = "masegraph",
        save_format: Literal["full_model", "state_dict"] = "full_model",
    ) -> None:
        """Writes a checkpoint, `fname.pt` and `fname.mz`; see `chop.ir.storage.checkpoint`."""
        from chop.ir.storage.checkpoint import export

        export(self.model, self.provenance, fname, save_format)

    @classmethod
    @with_checked_arguments
    def from_checkpoint(
        cls,
        checkpoint: str | Path,
        propagate_missing_metadata: bool = True,
        allow: Iterable[Any] = (),
        meta: bool = False,
    ) -> MaseGraph:
        """Reads a checkpoint of `export`; see `chop.ir.storage.checkpoint`.

        Neither code of the files nor the graph is run.

        Args:
            checkpoint: the name given to `export`, with or without a suffix.
            propagate_missing_metadata: recompute shapes and dtypes that the file lacks.
            allow: your own module classes and functions that the checkpoint may contain.
            meta: create parameters and buffers on the meta device without reading their data.

        Raises:
            CheckpointError: if files are missing, broken, or name a class that is not allowed.
            ConfigError: if `checkpoint` is not a path.
        """
        from chop.ir.storage.checkpoint import read_checkpoint

        model, provenance = read_checkpoint(checkpoint, propagate_missing_metadata, allow, meta)
        mg = cls(model)
        mg.provenance = provenance
        return mg

    def _repr_svg_(self) -> str:
        """Picture of the graph, for notebooks."""
        from chop.ir.drawing.draw import to_svg

        return to_svg(self.model)

    def __repr__(self) -> str:
        if self._captured is None and self._guess is not None:
            return f"MaseGraph({type(self._guess.model).__name__}, no example inputs yet)"
        return f"MaseGraph({self._model.record.class_name}, {len(self.nodes)} nodes)"

    def _free_path(self, parent: str, name: str) -> str:
        taken = dict(self._model.get_submodule(parent).named_children())
        attributes = vars(self._model.get_submodule(parent))
        while name in taken or name in attributes:
            name += "_q"
        return f"{parent}.{name}" if parent else name


def _check_is_node(node: object, where: str) -> None:
    if not isinstance(node, fx.Node):
        raise GraphError(
            f"{where}: expected a node, got {type(node).__name__}; mg.node(NAME) finds it."
        )


def _leaves(
    custom_ops: Mapping[str, Any] | Iterable[type[nn.Module] | str] | None,
) -> tuple[type[nn.Module] | str, ...]:
    given: Any = () if custom_ops is None else custom_ops
    if isinstance(given, Mapping):
        for key in given:
            if key not in ("modules", "functions"):
                choices = ("modules", "functions")
                raise ConfigError(f"custom_ops: unknown key '{key}': {did_you_mean(key, choices)}")
        given = given.get("modules", ())
    if isinstance(given, Set | Mapping | Iterator):
        given = tuple(given)
    own_leaves = convert(given, tuple[type | str, ...], "custom_ops")
    listed = (cls for row in OPS.values() for cls in row.modules)
    own = (cls for cls in listed if not cls.__module__.startswith("torch."))
    return (*own_leaves, QuantizedOperator, *own)
