"""Neighborhood search: an unvisited configuration near one that was proposed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator

from chop.search.registry import derive_seed
from chop.search.space import Config, SearchSpace

MOST = 10_000
"""Neighbors that are looked through."""
DRAWS = 200


def unvisited_neighbor(
    space: SearchSpace, config: Config, visited: Container[str], seed: int = 0
) -> Config | None:
    """A feasible configuration whose key is not among `visited`: a near one if there is one.

    First those that differ in one and in two choices are looked through, in an order of their own
    for each configuration; then random ones; at last the grid: None means that the space is used
    up, or that nothing was found in a large one (`SearchSpace.first`).
    """
    draw = random.Random(derive_seed(seed, ["near", space.key(config)]))

    def is_free(other: Config) -> bool:
        return space.key(other) not in visited and space.is_feasible(other)

    def others() -> Iterator[Config]:
        for changes in (1, 2):
            near = list(itertools.islice(space.neighbors(config, changes), MOST))
            draw.shuffle(near)
            yield from near
        yield from (space.at(draw.randrange(space.size)) for _ in range(DRAWS))

    return next(filter(is_free, others()), None) or space.first(is_free)
