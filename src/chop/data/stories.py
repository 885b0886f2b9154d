"""Generated stories whose last sentence follows from the earlier ones.

Each story has a person with a thing, a walk, and an event with the thing. It then asks who has the
thing, where it is, or which color it has, and answers. Names, things and colors are drawn for each
story, so a language model has to look back for the answer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import DatasetDict

TRAIN_SIZE, TEST_SIZE = 3000, 400

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate",
    "Leo", "Mary", "Noah", "Olga", "Paul",
)  # fmt: skip
THINGS = (
    "kite", "ball", "book", "hat", "drum", "boat", "lamp", "cup", "bell", "key", "coat", "doll",
    "flute", "map",
)  # fmt: skip
COLORS = ("red", "blue", "green", "white", "black", "yellow", "brown", "pink")
PLACES = (
    "lake", "park", "beach", "market", "forest", "school", "garden", "station", "bridge", "farm",
)  # fmt: skip
SPOTS = ("tree", "wall", "bench", "gate", "rock", "fence", "door", "well")
STARTS = ("{a} has a {color} {thing}.", "{a} gets a new {thing}. The {thing} is {color}.")
WALKS = (
    "One day {a} goes to the {place} with {b}.",
    "In the morning {a} walks to the {place}. {b} comes too.",
    "{a} and {b} meet at the {place}.",
    "After lunch {a} takes the {thing} to the {place}, and {b} is there.",
)
GIFTS = (
    "{b} wants the {thing}, so {a} gives it to {b}.",
    "{a} loses the {thing}, and {b} finds it.",
    "{a} sells the {thing} to {b}.",
)
LOANS = (
    "{b} takes the {thing}, but soon gives it back to {a}.",
    "{b} wants the {thing}, but {a} keeps it.",
)
HIDINGS = (
    "{a} hides the {thing} behind the {spot}.",
    "{b} takes the {thing} and puts it under the {spot}.",
)
WHO = "Who has the {thing} now? {owner} has the {color} {thing}."
WHERE = "Where is the {thing} now? The {color} {thing} is {side} the {spot}."
WHAT = "What color is the {thing}? The {thing} of {owner} is {color}."
GIFT_SHARE, LOAN_SHARE = 0.4, 0.3
END = "</s>"
"""Token that ends a text, at which `generate` stops."""


def story(draw: random.Random) -> str:
    """Generates a story of five or six sentences.

    >>> story(random.Random(5))[:56]
    'Ida has a yellow flute. In the morning Ida walks to the '
    """
    a, b = draw.sample(NAMES, 2)
    known = {
        "a": a,
        "b": b,
        "color": draw.choice(COLORS),
        "thing": draw.choice(THINGS),
        "place": draw.choice(PLACES),
        "spot": draw.choice(SPOTS),
    }
    kind = draw.random()
    if kind < GIFT_SHARE:
        event, end, owner = draw.choice(GIFTS), draw.choice((WHO, WHAT)), b
    elif kind < GIFT_SHARE + LOAN_SHARE:
        event, end, owner = draw.choice(LOANS), draw.choice((WHO, WHAT)), a
    else:
        event, end, owner = draw.choice(HIDINGS), WHERE, a
    side = "under" if "under" in event else "behind"
    frames = (draw.choice(STARTS), draw.choice(WALKS), event, end)
    return " ".join(frames).format(owner=owner, side=side, **known)


def stories() -> DatasetDict:
    """Returns 3,000 training and 400 test stories, always the same and all different.

    Column: `text`, which ends with `END`. There are no labels.
    """
    from datasets import Dataset, DatasetDict

    draw = random.Random(0)
    texts: dict[str, None] = {}
    while len(texts) < TRAIN_SIZE + TEST_SIZE:
        texts[story(draw) + END] = None
    rows = list(texts)
    return DatasetDict(
        train=Dataset.from_dict({"text": rows[:TRAIN_SIZE]}),
        test=Dataset.from_dict({"text": rows[TRAIN_SIZE:]}),
    )


def story_words() -> list[str]:
    """Returns all words and marks of the grammar, sorted."""
    frames = (*STARTS, *WALKS, *GIFTS, *LOANS, *HIDINGS, WHO, WHERE, WHAT)
    words = {
        word.strip(".,?") for frame in frames for word in frame.split() if not word.startswith("{")
    }
    drawn = (*NAMES, *THINGS, *COLORS, *PLACES, *SPOTS, "under", "behind")
    return sorted({*words, *drawn, *".,?"})
