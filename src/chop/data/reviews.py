"""Generated reviews whose label depends on word order.

The main clause of each sentence agrees with the label. Praise is often a denied fault ("never
dull"), and many sentences concede the opposite ("although the music was superb, ..."). A model
that counts words is therefore not sufficient.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import DatasetDict

TRAIN_SIZE, TEST_SIZE = 4000, 1000

SUBJECTS = (
    "the plot", "the cast", "the acting", "the music", "the ending", "the dialogue",
    "the script", "the camera work", "the pace", "the opening", "the humour", "the villain",
    "the lead", "the editing", "the first half", "the second half", "the story", "the direction",
    "the romance", "the sound", "each scene", "the whole film", "the final act", "the mystery",
)  # fmt: skip
VIRTUES = (
    "great", "superb", "funny", "moving", "clever", "gripping", "fresh", "brilliant", "charming",
    "convincing", "beautiful", "witty",
)  # fmt: skip
FAULTS = (
    "bad", "dull", "boring", "clumsy", "flat", "stale", "awful", "tedious", "predictable",
    "shallow", "ugly", "lifeless",
)  # fmt: skip
PLAIN = ("was", "was really", "was quite", "felt", "seemed")
DENIED = ("was not", "was never", "was hardly", "was far from")
CONCESSIONS = (
    "although {other}, {main}",
    "{other}, but {main}",
    "{main}, although {other}",
    "they say that {other}, but {main}",
)
PLAIN_SENTENCES = ("{main}", "i must say {main}", "in short, {main}", "for me {main}")
DENIED_SHARE = 0.25
CONCESSION_SHARE = 0.4


def _clause(draw: random.Random, is_praise: bool) -> str:
    is_denied = draw.random() < DENIED_SHARE
    verb = draw.choice(DENIED if is_denied else PLAIN)
    quality = draw.choice(VIRTUES if is_praise != is_denied else FAULTS)
    return f"{draw.choice(SUBJECTS)} {verb} {quality}"


def _sentence(draw: random.Random, is_praise: bool) -> str:
    concedes = draw.random() < CONCESSION_SHARE
    frame = draw.choice(CONCESSIONS if concedes else PLAIN_SENTENCES)
    return frame.format(main=_clause(draw, is_praise), other=_clause(draw, not is_praise))


def review(draw: random.Random, is_praise: bool) -> str:
    """Generates a review of one or two sentences.

    >>> review(random.Random(5), True)
    'the cast was really beautiful. for me the plot seemed moving.'
    """
    count = draw.randint(1, 2)
    return " ".join(f"{_sentence(draw, is_praise)}." for _ in range(count))


def reviews() -> DatasetDict:
    """Returns 4,000 training and 1,000 test reviews, always the same.

    Columns: `text` and `label` (0 `neg`, 1 `pos`), in equal numbers. All reviews are different.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    draw = random.Random(0)
    texts: dict[str, int] = {}
    while len(texts) < TRAIN_SIZE + TEST_SIZE:
        label = len(texts) % 2
        texts.setdefault(review(draw, bool(label)), label)
    rows = [{"text": text, "label": label} for text, label in texts.items()]
    features = Features(text=Value("string"), label=ClassLabel(names=["neg", "pos"]))
    return DatasetDict(
        train=Dataset.from_list(rows[:TRAIN_SIZE], features=features),
        test=Dataset.from_list(rows[TRAIN_SIZE:], features=features),
    )


def vocabulary() -> list[str]:
    """Returns all words and letters of the grammar, so that no text is out of vocabulary."""
    phrases = [*SUBJECTS, *VIRTUES, *FAULTS, *PLAIN, *DENIED]
    frames = [frame.format(main="", other="") for frame in (*CONCESSIONS, *PLAIN_SENTENCES)]
    words = {word.strip(",") for phrase in (*phrases, *frames) for word in phrase.split()}
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*letters, *(f"##{letter}" for letter in letters), *".,!?'-"]
    return [*pieces, *sorted(words - set(pieces) - {""})]
