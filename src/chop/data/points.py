"""Feature-vector data sets: generated points, and jets of the LHC."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from chop.base.hub import cache_folder
from chop.errors import UnavailableError

if TYPE_CHECKING:
    from datasets import DatasetDict

NUM_FEATURES, NUM_CLASSES = 16, 5
TOY_SIZE = 2000
TEST_SHARE = 0.2
JET_CLASSES = ("g", "q", "t", "w", "z")


def toy() -> DatasetDict:
    """Returns 1,600 training and 400 test points around one center per class, always the same.

    Columns: `x`, float32 (16,), standard normal around its center, and `labels`, int64, 0 to 4.
    """
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(NUM_CLASSES, NUM_FEATURES))
    labels = np.arange(TOY_SIZE) % NUM_CLASSES
    points = centers[labels] + draw.normal(size=(TOY_SIZE, NUM_FEATURES))
    return _as_splits(points, labels, [str(label) for label in range(NUM_CLASSES)])


def jets() -> DatasetDict:
    """Returns 830,000 jets of the LHC, a fifth of them for testing, fetched from OpenML once.

    Columns: `x`, float32 (16,), standardized with the training rows, and `labels`, int64: the jet
    comes from a gluon, light quark, top quark, W or Z boson.

    Source: M. Pierini et al., hls4ml LHC jet data set, doi:10.5281/zenodo.3602260.

    Raises:
        UnavailableError: if the data are not cached and OpenML cannot be reached.
    """
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            # Of every try that failed; then the error is raised.
            warnings.filterwarnings("ignore", module=r"sklearn\.datasets\._openml")
            table = fetch_openml(
                "hls4ml_lhc_jets_hlf",
                version=1,
                as_frame=False,
                data_home=str(cache_folder() / "openml"),
                n_retries=1,
                delay=0.1,
            )
    except OSError as error:
        raise UnavailableError(
            "data set 'jsc' is fetched from openml.org, which cannot be reached; 'toy' has the "
            "same shape and is built in."
        ) from error
    labels = np.searchsorted(JET_CLASSES, table.target.astype(str))
    return _as_splits(table.data, labels, list(JET_CLASSES))


def _as_splits(points: np.ndarray, labels: np.ndarray, names: list[str]) -> DatasetDict:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    train_x, test_x, train_y, test_y = train_test_split(
        points, labels, test_size=TEST_SHARE, stratify=labels, random_state=0
    )
    scale = StandardScaler().fit(train_x)
    features = Features(
        x=Sequence(Value("float32"), length=points.shape[1]), labels=ClassLabel(names=names)
    )
    splits = {"train": (train_x, train_y), "test": (test_x, test_y)}
    return DatasetDict(
        {
            name: Dataset.from_dict(
                {"x": scale.transform(x).astype("float32"), "labels": y}, features=features
            )
            for name, (x, y) in splits.items()
        }
    ).with_format("torch")
