"""Recipe of a precision search: formats of weights for `from_pretrained` and other jobs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from chop.actions.search.settings import PrecisionConfig
from chop.base.files import write_text
from chop.base.files.documents import dump_toml
from chop.base.plugins import import_options, import_setting
from chop.base.trust import options_naming
from chop.errors import ConfigError
from chop.formats import format_string
from chop.formats.recipe import Recipe
from chop.formats.recipe_of_layers import recipe_of_layers
from chop.ir.ops import get_called_row
from chop.problems.mixed_precision.candidates import WITH_BIAS
from chop.problems.mixed_precision.layers import Formats
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.report.report import Writer
from chop.search import Config, Result
from chop.search.location import MEMORY
from chop.workloads.settings import JudgedConfig, WorkloadConfig

if TYPE_CHECKING:
    from chop.ir.huggingface.quantizer import ChopConfig

RECIPE_FILE = "recipe.toml"
"""File for `chop compress --config` with the best trial; those of a front have trial numbers."""


@dataclass(frozen=True)
class _WeightRecipe:
    """Formats of weights, with inputs and biases in float.

    Attributes:
        format: format of most layers.
        operators: operators to quantize.
        recipe: formats of the other layers.
    """

    format: str
    operators: tuple[str, ...]
    recipe: Recipe

    def settings(self) -> dict[str, Any]:
        """Returns settings of `chop compress`."""
        return {
            "formats": [self.format],
            "operands": ["weight"],
            "operators": list(self.operators),
            **self.recipe.plain(),
        }

    def config(self) -> ChopConfig:
        """Returns settings for `from_pretrained`."""
        from chop.ir.huggingface.quantizer import ChopConfig

        return ChopConfig(self.format, operators=self.operators, **self.recipe.plain())


@dataclass(frozen=True, repr=False)
class PrecisionResult(Result):
    """Result of a precision search.

    Attributes:
        recipes: recipes of the best trial and of the Pareto front by trial number; empty if inputs
            or biases have formats too.
    """

    recipes: Mapping[int, _WeightRecipe] = field(default_factory=dict)

    @property
    def recipe(self) -> ChopConfig:
        """Recipe of the best trial for `from_pretrained`.

        Raises:
            ConfigError: if there is no best, or it has no recipe.
        """
        recipe = None if self.best is None else self.recipes.get(self.best.number)
        if recipe is None:
            raise ConfigError(
                "recipe: expected a best trial with formats for weights only: search with "
                "operands=('weight',) and bias='float'."
            )
        return recipe.config()


def get_recipe(problem: PrecisionProblem, config: Config) -> _WeightRecipe | None:
    """Returns the recipe of a configuration; None if it rounds more than weights, or nothing."""
    chosen = problem.formats(config)
    texts = {name: _weight_text(problem, name, formats) for name, formats in chosen.items()}
    if _rounds_others(chosen) or not any(texts.values()):
        return None
    layers = problem.layers.by_name
    operators = sorted({get_called_row(layers[name].operator).name for name in texts})
    usual, recipe = recipe_of_layers(texts)
    return _WeightRecipe(usual, tuple(operators), recipe)


def _rounds_others(chosen: Mapping[str, Formats]) -> bool:
    return any(
        not fmt.is_identity
        for formats in chosen.values()
        for operand, fmt in formats.items()
        if operand != "weight"
    )


def _weight_text(problem: PrecisionProblem, name: str, formats: Formats) -> str | None:
    """Returns the format string of a layer's weight; None if it stays float."""
    number_format = formats.get("weight")
    if number_format is None or number_format.is_identity:
        return None
    if isinstance(number_format, WITH_BIAS):  # the text has no exponent bias, so fit it here
        path, part = next(iter(problem.layers.by_name[name].parts.items()))
        number_format = problem.layers.fit(path, part, "weight", number_format)
    return format_string(number_format)


def recipe_files(config: PrecisionConfig, result: PrecisionResult) -> dict[str, Writer]:
    """Returns the writers of recipe files by name: of the best trial, and of each of a front."""
    assert result.best is not None
    named = {RECIPE_FILE: result.best.number}
    if len(result.recipes) > 1:
        named |= {f"recipe-trial-{number}.toml": number for number in result.recipes}
    return {
        name: partial(
            write_text, text=dump_toml(_compress_settings(config, result.recipes[number]))
        )
        for name, number in named.items()
        if number in result.recipes
    }


def _compress_settings(config: PrecisionConfig, recipe: _WeightRecipe) -> dict[str, Any]:
    """Returns settings of `chop compress` that build a recipe."""
    qat = {"qat_epochs": config.epochs, **({"qat_lr": config.lr} if config.epochs else {})}
    own = {**settings_of_workload(config), **config.distill_settings()}
    return {**import_setting(), **own, "keep_best": True, **qat, **recipe.settings()}


def about_recipe(
    config: PrecisionConfig, result: PrecisionResult, chosen: Mapping[str, Formats]
) -> str:
    """Returns the command that builds the best model; `chosen` are its formats by layer."""
    assert result.best is not None
    imports, named = import_options(), options_naming(vars(config))
    more = f"{imports}{named}"
    if result.best.number in result.recipes:
        file = shlex.quote(str(config.folder / RECIPE_FILE))
        return f"recipe: chop compress{more} --config {file}"
    if all(fmt.is_identity for formats in chosen.values() for fmt in formats.values()):
        return "no recipe: all layers of the best trial are float"
    if not config.where:
        return (
            "no recipe: the trials were in memory; to export the formats of the best one, search "
            f"again without --storage {MEMORY}"
        )
    trust = " --trust-code" if named else ""
    export = f"chop search export {config.where} best.toml{imports}{trust}"
    if config.circuit_goals():  # a circuit also rounds inputs
        return f"all formats: {export}"
    return f"build the best model: {export} && chop compress{more} --config best.toml"


def settings_of_workload(
    config: PrecisionConfig, kinds: Sequence[type] = (WorkloadConfig, JudgedConfig)
) -> dict[str, Any]:
    """Returns the settings that name the model and its data, the same for every job."""
    own = {"out", "batch_size", "device"}
    fields = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    same = [name for name in fields if name not in own]
    return {name: getattr(config, name) for name in same}
