"""Zero-cost proxies: scores of untrained models from a batch or two.

Each takes a freshly built model and one labeled batch, and is large where the model should learn
well. How far that is true on the built-in models is measured by `benchmarks/proxies.py`.

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
"""Relative difference of scores that sums in another order may have."""


def zero_cost_score(name: str, model: nn.Module, batch: Batch, *, seed: int = 0) -> float:
    """The score of an untrained model; larger is better.

    Args:
        name: one of `PROXIES`.
        model: a classifier, see `chop.train.model_io`; it stays as it is.
        batch: its input columns, and `labels`, int64 (N,). Not one row alone: `naswot` and
            `jacobian-covariance` compare rows.
        seed: of scores that draw at random.
    Returns: a finite number, or -inf where the score is not one: such a model is of no use.
    Raises:
        ConfigError: there is no such score, or it cannot be taken of this model.
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
    """The space without what scores low: such configurations become infeasible.

    The bar is set once, by a sample of the space, so that it is the same in every process and
    after every restart. A configuration is scored when it is first asked for, and only once.

    Args:
        space: all configurations.
        score: of a feasible configuration; larger is better.
        share: the share of the sample that passes, more than 0 to 1.
        sample: how many different configurations set the bar; small spaces give fewer.
        seed: of the draw.
    Raises:
        ConfigError: no feasible configuration was found, or `share` is out of range.
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
    # The bar is the score of a configuration, which must pass on other machines too.
    lowest = bar - SAME_SCORE * abs(bar)

    def why_infeasible(values: Mapping[str, Any]) -> str | None:
        reason = space.infeasible(values)
        if reason is None and (number := scored(_texts(space, values))) < lowest:
            return f"it scores {number:.4g}, below {bar:.4g}, which the best {share:.0%} reach"
        return reason

    return dataclasses.replace(space, infeasible=why_infeasible)


def _drawn(space: SearchSpace, count: int, seed: int) -> list[Config]:
    """Different feasible configurations, at random: up to `count` of them, at least one."""
    chance = random.Random(seed)
    found: dict[str, Config] = {}
    for _ in range(DRAWS_PER_CONFIG * count):
        config = space.at(chance.randrange(space.size))
        if space.is_feasible(config):
            found.setdefault(space.key(config), config)
        if len(found) == count:
            break
    if not found:
        raise ConfigError(f"none of {DRAWS_PER_CONFIG * count} drawn configurations is feasible.")
    return list(found.values())


def _texts(space: SearchSpace, values: Mapping[str, Any]) -> Config:
    return {
        choice.name: next(t for t, v in choice.options.items() if v is values[choice.name])
        for choice in space.choices
    }


def parameters(model: nn.Module, batch: Batch) -> float:
    """The number of parameters: what a score has to beat.

    Source: White et al. 2022, "A Deeper Look at Zero-Cost Proxies for Lightweight NAS", ICLR
    blog track: few scores do better on most spaces.
    """
    return float(sum(parameter.numel() for parameter in model.parameters()))


def _grad_norm(model: nn.Module, batch: Batch) -> float:
    """Sum over the parameters of the Euclidean norm of the loss's gradient.

    Source: Abdelfattah et al. 2021, arXiv:2101.08134, section 3.2.
    """
    _run(model, batch)[0].backward()
    return sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)


def snip(model: nn.Module, batch: Batch) -> float:
    """Sum over the weights of |w dL/dw|: what the loss loses with each, to first order.

    Source: Lee et al. 2019, arXiv:1810.02340, equation 5; summed up as in Abdelfattah et al. 2021,
    arXiv:2101.08134, equation 1.
    """
    _run(model, batch)[0].backward()
    return sum((w * w.grad).abs().sum().item() for w in _weights(model) if w.grad is not None)


def synflow(model: nn.Module, batch: Batch) -> float:
    """log of the sum of w dR/dw, R the sum of the logits of the linear model |w| fed with ones.

    Normalizations and activations are left out, so that R is a sum over paths of the products of
    their weights. In double precision, for these products are large.

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
    """log |det K|, K[i, j] the number of activations with the same sign for rows i and j.

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
        raise ConfigError("naswot: the model has no activation that is a module, as nn.ReLU().")
    with torch.no_grad():
        _run(model, batch)
    code_NA = torch.cat(codes, dim=1)
    kernel_NN = code_NA @ code_NA.T + (1 - code_NA) @ (1 - code_NA).T
    return float(torch.linalg.slogdet(kernel_NN).logabsdet)


def _jacobian_covariance(model: nn.Module, batch: Batch) -> float:
    """-sum of log(v + k) + 1 / (v + k), v the eigenvalues of the correlation of input gradients.

    A row's gradient is that of the sum of its logits; k = 1e-5. Of texts it is taken at the
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
    """log E|f(x) - f(x + 0.01 e)| + sum over normalizations of log s, of a model of random weights.

    Weights, x and e are standard normal; f is what the last linear layer reads; s is the root of
    the mean variance that a normalization divides by, which puts back what it takes from f.
    Residual connections stay, unlike in the source.

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
"""Every score by name. They change the model that they are given: see `zero_cost_score`."""


def _run(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss and the logits (N, C)."""
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
    """True for linear layers, convolutions that are not transposed, and embeddings."""
    rows = [row for row in OPS.values() if row.weight and not row.weight.is_transposed]
    return isinstance(module, tuple(cls for row in rows for cls in row.modules))


def _change_input(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """From now on the first layer reads `change(x)`; of an embedding, what it answers is changed.

    Raises:
        ConfigError: the model has no layer.
    """
    first = next((module for module in model.modules() if _is_layer(module)), None)
    if first is None:
        raise ConfigError(f"{type(model).__name__} has no linear, convolution or embedding layer.")
    if isinstance(first, nn.Embedding):
        first.register_forward_hook(lambda module, inputs, output: change(output))
    else:
        first.register_forward_pre_hook(lambda module, inputs: (change(inputs[0]), *inputs[1:]))


def _deviation(norm: nn.Module, x: Tensor) -> float:
    """Root of the mean variance of what is normalized together."""
    per_channel = isinstance(norm, BatchNorm)
    axes = [0, *range(2, x.dim())] if per_channel else [x.dim() - 1]
    return x.var(dim=axes, correction=0).mean().sqrt().item()
