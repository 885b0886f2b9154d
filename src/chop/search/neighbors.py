"""Search for an unvisited configuration near a proposed one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator

from chop.search.registry import derive_seed
from chop.search.space import Config, SearchSpace

MAX_NEIGHBORS = 10_000
"""Maximum number of neighbors examined."""
DRAWS = 200


def unvisited_neighbor(
    space: SearchSpace, config: Config, visited: Container[str], seed: int = 0
) -> Config | None:
    """Returns a feasible configuration that is not in `visited`, preferably a near one.

    Neighbors that differ in one and two choices are examined first, in an order that depends on the
    configuration, then random configurations, then the grid. Returns None if the space is
    exhausted, or none was found in a large space (`SearchSpace.first`).
    """
    draw = random.Random(derive_seed(seed, ["near", space.key(config)]))

    def is_free(other: Config) -> bool:
        return space.key(other) not in visited and space.is_feasible(other)

    def others() -> Iterator[Config]:
        for changes in (1, 2):
            near = list(itertools.islice(space.neighbors(config, changes), MAX_NEIGHBORS))
            draw.shuffle(near)
            yield from near
        yield from (space.at(draw.randrange(space.size)) for _ in range(DRAWS))

    return next(filter(is_free, others()), None) or space.first(is_free)
