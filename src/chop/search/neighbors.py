"""A configuration that was not tried, near one that was."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator

from chop.search.registry import seed_of
from chop.search.space import Config, SearchSpace

MOST = 10_000
"""Neighbours that are looked through."""
DRAWS = 200


def unseen_near(
    space: SearchSpace, config: Config, seen: Container[str], seed: int = 0
) -> Config | None:
    """A possible configuration whose key is not among `seen`: a near one if there is one.

    First those that differ in one and in two choices are looked through, in an order of their own
    for each configuration; then random ones; at last the grid: None means that the space is used
    up, or that nothing was found in a large one (`SearchSpace.first`).
    """
    draw = random.Random(seed_of(seed, ["near", space.key(config)]))

    def is_free(other: Config) -> bool:
        return space.key(other) not in seen and space.obstacle(other) is None

    def others() -> Iterator[Config]:
        for changes in (1, 2):
            near = list(itertools.islice(space.neighbours(config, changes), MOST))
            draw.shuffle(near)
            yield from near
        yield from (space.at(draw.randrange(space.size)) for _ in range(DRAWS))

    return next(filter(is_free, others()), None) or space.first(is_free)
