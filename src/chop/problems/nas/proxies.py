"""Zero-cost proxies: scores of untrained models from one or two batches.

Each proxy takes a new model and a labeled batch, and is larger for models that are expected to
learn better. `benchmarks/proxies.py` measures their rank correlation on the built-in models.

Shapes: N rows, C classes, D numbers of a row's input, A activations of a row.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, check_known
from chop.ir.ops import OPS
from chop.ir.ops.dimensions import unchanged
from chop.private.torch_api import DROPOUTS, BatchNorm
from chop.search.space import Config, SearchSpace
from chop.train.model_io import LABELS, input_columns, loss_and_logits

Batch = Mapping[str, Tensor]
Proxy = Callable[[nn.Module, Batch], float]

ACTIVATION_FILES = ("torch.nn.modules.activation", "transformers.activations")
SMALLEST_EIGENVALUE = 1e-5
ZEN_STEP = 0.01
DRAWS_PER_CONFIG = 50
SAME_SCORE = 1e-6
"""Relative tolerance of equal scores, for different orders of summation."""


def zero_cost_score(name: str, model: nn.Module, batch: Batch, *, seed: int = 0) -> float:
    """Returns the score of an untrained model; larger is better.

    Args:
        name: one of `PROXIES`.
        model: classifier, see `chop.train.model_io`. It is not modified.
        batch: input columns and `labels`, int64 (N,). Needs at least two rows: `naswot` and
            `jacobian-covariance` compare rows.
        seed: seed of scores that draw random numbers.
    Returns: a finite number, or -inf if the score is not finite.
    Raises:
        ConfigError: if the score is unknown or not defined for this model.
    """
    check_known(name, PROXIES, "unknown zero-cost score")
    device = next(model.parameters()).device
    scored = copy.deepcopy(model).train().requires_grad_()
    for module in scored.modules():
        if isinstance(module, DROPOUTS):
            module.eval()
    here = {column: values.to(device) for column, values in batch.items()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.enable_grad():
            score = PROXIES[name](scored, here)
    return score if math.isfinite(score) else -math.inf


def best_share(
    space: SearchSpace,
    score: Callable[[Config], float],
    *,
    share: float = 0.25,
    sample: int = 64,
    seed: int = 0,
) -> SearchSpace:
    """Returns the space restricted to high scores: other configurations become infeasible.

    The threshold comes from one sample of the space, and is the same in every process and after
    restarts. Each configuration is scored once, when it is first needed.

    Args:
        space: complete space.
        score: score of a feasible configuration; larger is better.
        share: share of the sample that passes, greater than 0 and at most 1.
        sample: number of different configurations in the sample; fewer in small spaces.
        seed: seed of the sample.
    Raises:
        ConfigError: if no feasible configuration was found, or `share` is out of range.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share: got {share}, expected more than 0 to 1.")
    scores: dict[str, float] = {}

    def scored(config: Config) -> float:
        key = space.key(config)
        if key not in scores:
            scores[key] = score(config)
        return scores[key]

    drawn = sorted(map(scored, _drawn(space, sample, seed)), reverse=True)
    bar = drawn[math.ceil(share * len(drawn)) - 1]
    # The configuration whose score is the threshold must also pass on other machines.
    lowest = bar - SAME_SCORE * abs(bar)

    def why_infeasible(values: Mapping[str, Any]) -> str | None:
        reason = space.infeasible(values)
        if reason is None and (number := scored(_texts(space, values))) < lowest:
            return f"it scores {number:.4g}, below {bar:.4g}, which the best {share:.0%} reach"
        return reason

    return dataclasses.replace(space, infeasible=why_infeasible)


def _drawn(space: SearchSpace, count: int, seed: int) -> list[Config]:
    """Returns different random feasible configurations: at most `count`, at least one."""
    chance = random.Random(seed)
    configs: dict[str, Config] = {}
    for _ in range(DRAWS_PER_CONFIG * count):
        config = space.at(chance.randrange(space.size))
        if space.is_feasible(config):
            configs.setdefault(space.key(config), config)
        if len(configs) == count:
            break
    if not configs:
        raise ConfigError(f"none of {DRAWS_PER_CONFIG * count} drawn configurations is feasible.")
    return list(configs.values())


def _texts(space: SearchSpace, values: Mapping[str, Any]) -> Config:
    return {
        choice.name: next(t for t, v in choice.options.items() if v is values[choice.name])
        for choice in space.choices
    }


def parameters(model: nn.Module, batch: Batch) -> float:
    """Returns the number of parameters, the baseline of all proxies.

    Source: White et al. 2022, "A Deeper Look at Zero-Cost Proxies for Lightweight NAS", ICLR
    blog track: few scores do better on most spaces.
    """
    return float(sum(parameter.numel() for parameter in model.parameters()))


def _grad_norm(model: nn.Module, batch: Batch) -> float:
    """Returns the sum over the parameters of the Euclidean norm of the loss gradient.

    Source: Abdelfattah et al. 2021, arXiv:2101.08134, section 3.2.
    """
    _run(model, batch)[0].backward()
    return sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)


def snip(model: nn.Module, batch: Batch) -> float:
    """Returns the sum over the weights of |w dL/dw|, the first-order effect of removing them.

    Source: Lee et al. 2019, arXiv:1810.02340, equation 5; summed up as in Abdelfattah et al. 2021,
    arXiv:2101.08134, equation 1.
    """
    _run(model, batch)[0].backward()
    return sum((w * w.grad).abs().sum().item() for w in _weights(model) if w.grad is not None)


def synflow(model: nn.Module, batch: Batch) -> float:
    """Returns the log of the sum of w dR/dw, with R the summed logits of the model |w| on ones.

    Normalizations and activations are removed, so that R is a sum over paths of the products of
    their weights. Double precision is needed because these products are large.

    Source: Tanaka et al. 2020, arXiv:2006.05467, equation 2 and algorithm 1.
    """
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
    for module in model.modules():
        if _is_activation(module) or "Norm" in type(module).__name__:
            module.register_forward_hook(lambda module, inputs, output: inputs[0])
    _change_input(model, torch.ones_like)
    first = {column: values[:1] for column, values in batch.items()}
    row = {name: x.double() if x.is_floating_point() else x for name, x in first.items()}
    _run(model, row)[1].sum().backward()
    total = sum((w * w.grad).sum().item() for w in _weights(model) if w.grad is not None)
    return math.log(total) if total > 0 else -math.inf


def naswot(model: nn.Module, batch: Batch) -> float:
    """Returns log |det K|, with K[i, j] the number of activations of equal sign in rows i and j.

    Source: Mellor et al. 2021, arXiv:2006.04647v3, equation 2.
    """
    codes: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda module, inputs: codes.append((inputs[0] > 0).flatten(1).double())
        )
        for module in model.modules()
        if _is_activation(module)
    ]
    if not hooks:
        raise ConfigError(
            "naswot: the model has no activation that is a module, such as nn.ReLU()."
        )
    with torch.no_grad():
        _run(model, batch)
    code_NA = torch.cat(codes, dim=1)
    kernel_NN = code_NA @ code_NA.T + (1 - code_NA) @ (1 - code_NA).T
    return float(torch.linalg.slogdet(kernel_NN).logabsdet)


def _jacobian_covariance(model: nn.Module, batch: Batch) -> float:
    """Returns -sum of log(v + k) + 1 / (v + k) over eigenvalues v of input-gradient correlations.

    The gradient of a row is that of the sum of its logits; k = 1e-5. For texts, it is taken at the
    embedding of the tokens.

    Source: Mellor et al. 2020, arXiv:2006.04647v1, equations 1 to 3.
    """
    entered: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        entered.append(x.detach().requires_grad_())
        return entered[0]

    _change_input(model, keep)
    _run(model, batch)[1].sum().backward()
    assert entered[0].grad is not None
    jacobian_ND = entered[0].grad.flatten(1).double()
    values_N = torch.linalg.eigvalsh(torch.corrcoef(jacobian_ND)).clamp(min=0)
    shifted_N = values_N + SMALLEST_EIGENVALUE
    return -float((shifted_N.log() + 1 / shifted_N).sum())


def zen(model: nn.Module, batch: Batch) -> float:
    """Returns log E|f(x) - f(x + 0.01 e)| + sum over normalizations of log s, for random weights.

    Weights, x and e are standard normal; f is the input of the last linear layer; s is the root of
    the mean variance that a normalization divides by, which restores the scale of f. Residual
    connections stay, unlike in the source.

    Source: Lin et al. 2021, arXiv:2102.01063, algorithm 1.
    """
    scales, features = [], []
    for module in model.modules():
        if _is_layer(module):
            nn.init.normal_(module.get_parameter("weight"))
        if "Norm" in type(module).__name__:
            module.register_forward_pre_hook(lambda norm, x: scales.append(_deviation(norm, x[0])))
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    head.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
    noise: dict[str, Tensor] = {}

    def draw(x: Tensor) -> Tensor:
        if not noise:
            noise["x"] = torch.randn_like(x)
            return noise["x"]
        return noise["x"] + ZEN_STEP * torch.randn_like(x)

    _change_input(model, draw)
    with torch.no_grad():
        _run(model, batch)
        compensation = sum(math.log(scale) for scale in scales)
        _run(model, batch)
    return float((features[1] - features[0]).norm().log()) + compensation


PROXIES: dict[str, Proxy] = {
    "parameters": parameters,
    "grad-norm": _grad_norm,
    "snip": snip,
    "synflow": synflow,
    "naswot": naswot,
    "jacobian-covariance": _jacobian_covariance,
    "zen": zen,
}
"""Scores by name. They modify the given model; `zero_cost_score` copies it first."""


def _run(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the loss and the logits (N, C)."""
    columns = input_columns(model, [*batch])
    output = model(**{name: batch[column] for name, column in columns.items()})
    return loss_and_logits(output, batch[LABELS])


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.dim() > 1)


def _is_activation(module: nn.Module) -> bool:
    mixing = (cls for row in OPS.values() if row.follow is not unchanged for cls in row.modules)
    others = (nn.Softmax2d, nn.Softmin, *mixing)
    return type(module).__module__ in ACTIVATION_FILES and not isinstance(module, others)


def _is_layer(module: nn.Module) -> bool:
    """Returns whether a module is a linear layer, non-transposed convolution, or embedding."""
    rows = [row for row in OPS.values() if row.weight and not row.weight.is_transposed]
    return isinstance(module, tuple(cls for row in rows for cls in row.modules))


def _change_input(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Applies `change` to the input of the first layer, or to the output of an embedding.

    Raises:
        ConfigError: if the model has no such layer.
    """
    first = next((module for module in model.modules() if _is_layer(module)), None)
    if first is None:
        raise ConfigError(f"{type(model).__name__} has no linear, convolution or embedding layer.")
    if isinstance(first, nn.Embedding):
        first.register_forward_hook(lambda module, inputs, output: change(output))
    else:
        first.register_forward_pre_hook(lambda module, inputs: (change(inputs[0]), *inputs[1:]))


def _deviation(norm: nn.Module, x: Tensor) -> float:
    """Returns the root of the mean variance over the jointly normalized elements."""
    per_channel = isinstance(norm, BatchNorm)
    axes = [0, *range(2, x.dim())] if per_channel else [x.dim() - 1]
    return x.var(dim=axes, correction=0).mean().sqrt().item()
