"""Native decoding: tokens of packed decoders without Python between their operations."""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.notices import warn_once
from chop.captured.huggingface.cache_names import cache_name, find_cache
from chop.errors import ConfigError
from chop.kernels.cpu.steps import StepRecorder, UnsupportedStepError
from chop.private.modules import has_forward_hooks, own_buffers, own_parameters
from chop.private.torch_api import global_forward_hooks, write_count
from chop.private.transformers_api import attention_functions, set_attention_name

ATTENTION = "chop_one_token"
"""Name of the attention function during a recording."""
TOLERANCE = 1e-3
"""Largest difference of logits from the model's, relative to the largest logit."""
PLAIN = ("torch.nn.", "transformers.", "chop.nn.packed.", "chop.nn.quantized.")
"""Packages whose modules have no state besides tensors, submodules and the training mode."""
SUPPORTED = (
    *("input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"),
    "return_dict",
)
"""Keywords of a call for one token."""
OWN_FORWARD = "forward"
"""Attribute of a module that replaces the method of its class."""
UNUSED = ("position_ids", "use_cache", "output_attentions")
"""Keywords of attention functions that do not change the result of one token."""


def decode_natively(model: nn.Module) -> nn.Module:
    """Lets a packed decoder generate tokens by one native call each, without a compiler.

    The first token that follows a prompt in a static cache is recorded as a list of operations,
    which later tokens run in C++. The results differ from the model's by float32 rounding. All
    other calls are those of the model: prompts, several texts, other caches, padding, hooks,
    training, and models with operations that cannot be recorded, which is reported once. Changed
    weights, layers, and numbers among their attributes are recorded again with the next text.

    Args:
        model: decoder of transformers in evaluation mode on a CPU, with packed layers and float32
            activations. It is changed, and its parameters stay as they are.
    Returns: the model.

    Raises:
        ConfigError: if the model is not a decoder of transformers, or has a `forward` of its own.

    Example:
        model = decode_natively(AutoModelForCausalLM.from_pretrained("runs/compress/model"))
        model.generate(**texts, cache_implementation="static")
    """
    if not getattr(model, "can_generate", bool)():
        raise ConfigError(
            f"decode_natively: expected a decoder of transformers, got a {type(model).__name__}."
        )
    if not isinstance(vars(model).get(OWN_FORWARD), NativeForward | None):
        raise ConfigError(
            "decode_natively: the model has a forward of its own, such as a compiled one. Delete "
            "the attribute with `del model.forward` first."
        )
    model.forward = NativeForward(model)
    return model


class NativeForward:
    """`forward` of a decoder that runs single tokens as a list of steps.

    Copies and pickles of the model have it as well, and record again.

    Args:
        model: the decoder.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.__signature__ = inspect.signature(type(model).forward.__get__(model))
        self._running = threading.Lock()
        self._steps: _Token | None = None
        self._recorded_for: _State | None = None
        # The model is compared with the recorded one at the first token of each text.
        self._text: Callable[[], Any] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"])  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the model's output."""
        name, cache = find_cache(kwargs)
        if not (args or torch.compiler.is_compiling()) and _is_one_token(self.model, kwargs, cache):
            # The memory of the steps belongs to one token at a time.
            with self._running:
                logits = self._logits(kwargs["input_ids"], cache)
            if logits is not None:
                from transformers.modeling_outputs import CausalLMOutputWithPast

                return CausalLMOutputWithPast(logits=logits, **{name: cache})
        elif _has_other_cache(kwargs, cache):
            _report(self.model, "its cache is not static; pass cache_implementation='static'")
        self._text = lambda: None
        return type(self.model).forward(self.model, *args, **kwargs)

    def _logits(self, ids: Tensor, cache: Any) -> Tensor | None:
        """Returns logits of one token (1, 1, vocabulary), or None if the model has to run."""
        is_first = int(cache.layers[0].cumulative_length) == 0  # of a cache that was reset
        if self._text() is not cache or is_first:
            state = _state(self.model)
            if state is None or state != self._recorded_for:
                self._steps = None if state is None else _recorded(self.model, ids, cache, state)
                self._recorded_for = state
            self._text = weakref.ref(cache)
        if self._steps is None or not self._steps.fits(cache):
            return None
        logits = self._steps.run(ids, cache)
        for layer in cache.layers:
            layer.cumulative_length.add_(1)
        return logits


@dataclass(frozen=True)
class _State:
    """Parts of a model that recorded steps depend on.

    Attributes:
        values: settings, and identities of modules and tensors.
        tensors: parameters and buffers. Their identities are not used again while they exist.
    """

    values: list[Any]
    tensors: list[Tensor] = field(compare=False)


class _Token:
    """Recorded steps of one token.

    Args:
        model: decoder. It stays as it is: the steps are those of a copy with the same tensors.
        ids: a token, (1, 1).
        tensors: parameters and buffers.

    Raises:
        UnsupportedStepError: if an operation cannot run as a step.
    """

    def __init__(self, model: Any, ids: Tensor, tensors: list[Tensor]) -> None:
        from transformers import modeling_utils

        self._embed = model.get_input_embeddings()
        with torch.inference_mode(False), torch.no_grad():
            self._row = self._embed(ids).clone()
            self._position = torch.ones(1, 1, dtype=torch.int64)
            recorder = StepRecorder(
                (self._row, self._position), [x for x in tensors if x.dtype == torch.float32]
            )
            given = {cache_name(model): _one_token_cache(), "position_ids": self._position}
            # Other threads may run the model meanwhile, with its own attention and buffers.
            twin = copy.deepcopy(model, {id(x): x for x in tensors})
            attention_functions(modeling_utils)[ATTENTION] = _attend
            set_attention_name(twin.config, ATTENTION)
            with recorder:
                output = type(model).forward(twin, inputs_embeds=self._row, use_cache=True, **given)
        self._logits: Tensor = output.logits
        self._steps = recorder.finish()
        if sorted(self._steps.caches) != [*range(len(self._steps.caches))]:
            raise UnsupportedStepError("layers without attention are not supported")

    def fits(self, cache: Any) -> bool:
        """Returns whether the steps can write into a static cache."""
        sizes, tokens = self._steps.caches, cache.layers[0].max_cache_len
        if len(sizes) != len(cache.layers):
            return False
        expected = [(1, heads, tokens, size) for _, (heads, size) in sorted(sizes.items())]
        return all(
            x.shape == shape and x.is_contiguous()
            for layer, shape in zip(cache.layers, expected, strict=True)
            for x in (layer.keys, layer.values)
        )

    def run(self, ids: Tensor, cache: Any) -> Tensor:
        """Returns the logits of a token, and writes its keys and values into the cache."""
        self._row.copy_(self._embed(ids))
        position = int(cache.layers[0].cumulative_length)
        self._position.fill_(position)
        keys = [layer.keys.data_ptr() for layer in cache.layers]
        values = [layer.values.data_ptr() for layer in cache.layers]
        self._steps.run(keys, values, cache.layers[0].max_cache_len, position)
        return self._logits.clone()


def _recorded(model: Any, ids: Tensor, cache: Any, state: _State) -> _Token | None:
    """Returns the steps, checked against the model; None if they cannot be used."""
    try:
        token = _Token(model, ids, state.tensors)
    except UnsupportedStepError as reason:
        _report(model, str(reason))
        return None
    if not token.fits(cache):
        return None
    logits = token.run(ids, cache)
    name = cache_name(model)
    output = type(model).forward(model, input_ids=ids, use_cache=True, **{name: cache})
    cache.crop(-1)
    if not isinstance(output, Mapping) or {*output} != {"logits", name}:
        _report(model, "its configuration asks for other outputs than logits and a cache")
        return None
    expected: Tensor = output["logits"]
    error = (logits - expected).abs().max()
    if not error <= TOLERANCE * expected.abs().max():
        _report(model, f"recorded steps differ by {error.item():.2g} from the model")
        return None
    return token


def _report(model: nn.Module, reason: str) -> None:
    warn_once(
        f"decode_natively: {type(model).__name__} decodes as without it: {reason}.",
        about=f"decode_natively: {reason}",
    )


def _is_one_token(model: nn.Module, kwargs: dict[str, Any], cache: Any) -> bool:
    """Returns whether a call is for one token that sees a whole static cache of one text."""
    ids = kwargs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.shape != (1, 1) or cache is None:
        return False
    if model.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    given = {name: x for name, x in kwargs.items() if name not in SUPPORTED and x is not cache}
    if not all(x is None or x is False for x in given.values()):
        return False
    if kwargs.get("use_cache") is False or kwargs.get("return_dict") is False:
        return False
    if isinstance(kwargs.get("logits_to_keep"), Tensor) or not _is_plain_static(cache):
        return False
    first, positions = cache.layers[0], kwargs.get("position_ids")
    position, tokens = int(first.cumulative_length), first.max_cache_len
    is_next = positions is None or (positions.numel() == 1 and int(positions) == position)
    # Cropping may leave a negative length.
    is_within = 0 <= position < tokens
    return is_next and is_within and _sees_all(kwargs.get("attention_mask"), position, tokens)


def _has_other_cache(kwargs: dict[str, Any], cache: Any) -> bool:
    """Returns whether a call is for one token after a text, with a cache that is not static."""
    from transformers import StaticCache

    ids = kwargs.get("input_ids")
    is_one = isinstance(ids, Tensor) and ids.shape == (1, 1) and cache is not None
    return is_one and not isinstance(cache, StaticCache) and cache.get_seq_length() > 0


def _is_plain_static(cache: Any) -> bool:
    """Returns whether a cache has keys and values of all tokens, in float32 on the CPU."""
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    return (
        type(cache) is StaticCache
        and len(cache.layers) > 0
        and all(
            type(layer) is StaticLayer
            and layer.is_initialized
            and layer.keys.dtype == torch.float32
            and layer.keys.is_cpu
            for layer in cache.layers
        )
    )


def _sees_all(mask: Any, position: int, tokens: int) -> bool:
    """Returns whether a mask of one row shows all tokens up to `position`, and no others.

    Args:
        mask: mask of tokens, (1, T), of a whole cache, (1, 1, 1, tokens), or None. `generate`
            passes masks by the kind of the layers if a configuration lists kinds.
        position: number of tokens before the token.
        tokens: size of the cache.
    """
    if isinstance(mask, Mapping):
        return all(_sees_all(x, position, tokens) for x in mask.values())
    if not isinstance(mask, Tensor):
        return mask is None
    if mask.ndim == 2:
        # Attention is causal, and tokens beyond the mask are hidden.
        return len(mask) == 1 and mask.size(1) > position and bool(mask[0, : position + 1].all())
    if mask.shape != (1, 1, 1, tokens):
        return False
    is_bias = mask.is_floating_point()
    if not is_bias and mask.dtype != torch.bool:
        return False
    visible = mask == 0 if is_bias else mask
    hidden = mask <= torch.finfo(mask.dtype).min if is_bias else ~mask
    after = position + 1
    return bool(visible[..., :after].all() and hidden[..., after:].all())


def _state(model: nn.Module) -> _State | None:
    """Returns the state of a model; None if other Python code decides the result."""
    state: list[Any] = [_settings(model.config)]
    tensors: list[Tensor] = []
    if global_forward_hooks():
        _report(model, "all modules have hooks")
        return None
    for module in model.modules():
        name = type(module).__name__
        if not type(module).__module__.startswith(PLAIN):
            _report(model, f"{name} is not a module of torch, transformers or chop")
            return None
        # Those of the model itself run before and after its forward.
        if module is not model and (has_forward_hooks(module) or OWN_FORWARD in vars(module)):
            _report(model, f"a {name} has hooks or a forward of its own")
            return None
        state.append((module, _settings(module)))
        for x in (*own_parameters(module).values(), *own_buffers(module).values()):
            if x is not None:
                count = None if x.is_inference() else write_count(x)
                state.append((id(x), x.data_ptr(), x.dtype, count))
                tensors.append(x)
    return _State(state, tensors)


def _settings(owner: Any) -> dict[str, Any]:
    """Returns the attributes of a module or configuration that are numbers or text."""
    return {n: x for n, x in vars(owner).items() if isinstance(x, int | float | str)}


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    unknown = [n for n, x in others.items() if n not in UNUSED and x is not None]
    if unknown or attention_mask is not None:
        raise UnsupportedStepError(f"attention has {', '.join(unknown) or 'a mask'}")
    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    y: Tensor = torch.ops.chop.attend(query, key, value, module.layer_idx, scale)
    return y, None


def _one_token_cache() -> Any:
    """Returns a cache that contains the token itself only."""
    from transformers import Cache

    class OneToken(Cache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(layers=[])

        def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            return key, value

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

    return OneToken()
