"""Settings of the pruning pass and of pruning schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from chop.config import Range, check_fields
from chop.errors import ConfigError, did_you_mean
from chop.ir.batches import Batches
from chop.nn.sparsity import SCORES, Granularity

WHERE = "prune_transform_pass"


@dataclass(frozen=True)
class WeightPruning:
    """Weight pruning settings.

    Attributes:
        sparsity: share of the unmasked weights to prune, 0 to below 1; or shares by operator,
            module path, node name or a pattern of these. Not used with granularity n:m.
        method: a name of `chop.nn.sparsity.SCORES`; weights with the lowest scores are pruned.
        scope: `local` prunes the share of each layer, `global` the share over all layers. Columns,
            channels and heads count equally, independently of their sizes.
        granularity: `elementwise`; `column`, all weights of an input; `n:m`, such as `2:4`, keeps n
            of every m neighbors along the input. `channel` or `row` remove outputs of layers from
            the model, `head` removes attention heads, which reduces the parameters. Query heads
            that share keys and values are removed together with them.
        seed: seed of `random`.
    """

    sparsity: Annotated[float | Mapping[str, float] | None, Range(0, below=1)] = None
    method: str = "l1-norm"
    scope: Literal["local", "global"] = field(
        default="local", metadata={"hint": "A pattern such as 2:4 is a granularity."}
    )
    granularity: str = "elementwise"
    seed: int = 0

    def __post_init__(self) -> None:
        where = f"{WHERE}.weight"
        if self.method not in SCORES:
            raise ConfigError(
                f"{where}.method: '{self.method}': {did_you_mean(self.method, SCORES)}"
            )
        pattern = Granularity.parse(self.granularity)
        if SCORES[self.method].needs == "units" and not pattern.is_structured:
            raise ConfigError(
                f"{where}: method '{self.method}' ranks channels and heads, got granularity "
                f"'{self.granularity}'; choose granularity 'channel' or 'head', or method 'wanda'."
            )
        if self.sparsity is None and not pattern.group:
            raise ConfigError(f"{where}: missing key 'sparsity'.")
        check_fields(self, where)
        _check_scope(self.sparsity, self.scope, where)
        if pattern.group and self.sparsity is not None and self.sparsity != pattern.sparsity:
            raise ConfigError(
                f"{where}: granularity {pattern.name} has sparsity {pattern.sparsity:g}, got "
                f"{self.sparsity!r}; leave 'sparsity' out."
            )

    @property
    def shares(self) -> float | Mapping[str, float]:
        """Sparsity, also if the granularity determines it."""
        return (
            Granularity.parse(self.granularity).sparsity if self.sparsity is None else self.sparsity
        )

    @property
    def note(self) -> dict[str, str]:
        """Settings that a mask stores."""
        return {"method": self.method, "scope": self.scope, "granularity": self.granularity}


@dataclass(frozen=True)
class ActivationPruning:
    """Activation pruning settings; see `chop.nn.sparsity.PruneActivation`.

    Attributes:
        sparsity: as for weights.
        method: `l1-norm` or `random`.
        scope: `local` prunes the share of each tensor; `global` prunes magnitudes below one
            threshold, computed from all inputs of the chosen operators in `batches`, which are held
            in memory together. Without batches (with a warning) and for `random`, it behaves like
            `local`.
        granularity: `elementwise`.
        seed: seed of `random`; every layer draws differently.
    """

    sparsity: Annotated[float | Mapping[str, float], Range(0, below=1)]
    method: Literal["l1-norm", "random"] = "l1-norm"
    scope: Literal["local", "global"] = "local"
    granularity: Literal["elementwise"] = "elementwise"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"{WHERE}.activation")
        _check_scope(self.sparsity, self.scope, f"{WHERE}.activation")


@dataclass(frozen=True)
class PruneConfig:
    """Settings of `prune_transform_pass`.

    Attributes:
        weight: see `WeightPruning`.
        activation: see `ActivationPruning`.
        include: operators, module paths, node names or patterns of these; default, linear and
            convolution layers.
        exclude: operators, paths, names or patterns to exclude.
        batches: inputs of the model by name, one mapping per batch, for methods that use data and
            for the `global` scope of activations; gradient methods need `labels`.
    """

    weight: WeightPruning | None = None
    activation: ActivationPruning | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    batches: Batches | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.weight is None and self.activation is None:
            raise ConfigError(f"{WHERE}: expected 'weight', 'activation' or both, got neither.")
        needs = SCORES[self.weight.method].needs if self.weight else None
        if self.weight and needs and self.batches is None:
            raise ConfigError(
                f"{WHERE}: method '{self.weight.method}' looks at {needs}: pass 'batches', "
                "mappings of the model's inputs by name."
            )


def _check_scope(sparsity: float | Mapping[str, float] | None, scope: str, where: str) -> None:
    if isinstance(sparsity, Mapping) and scope == "global":
        raise ConfigError(
            f"{where}: scope 'global' has one sparsity, got one by layer; choose scope 'local'."
        )
