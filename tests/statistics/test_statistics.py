import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.statistics import STATISTICS, Reservoir, Statistic, make_statistic


def stream(*shape, batches=7, scale=3.0):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) * scale + 100 for _ in range(batches)]


def measured(name, tensors, **settings):
    statistic = make_statistic(name, settings, "test")
    for x in tensors:
        statistic.update(x)
    return statistic.compute()


# dims, and how numpy reduces all batches at once: batch axis first, then the tensor's own axes
AXES = [("all", (0, 1, 2, 3)), ((0, 2), (0, 1, 3)), ((-1,), (0, 3)), (None, (0,))]


@pytest.mark.parametrize("dims, axes", AXES)
def test_moments_and_ranges_are_those_of_all_the_data(dims, axes):
    tensors = stream(5, 3, 4)
    data = np.stack([x.double().numpy() for x in tensors])
    count = int(np.prod([data.shape[axis] for axis in axes]))
    for name in ("variance_online", "variance_precise"):
        found = measured(name, tensors, dims=dims)
        np.testing.assert_allclose(found["mean"], data.mean(axes), rtol=1e-12)
        np.testing.assert_allclose(found["variance"], data.var(axes, ddof=1), rtol=1e-10)
        assert found["count"] == count
    found = measured("range_min_max", tensors, dims=dims)
    assert np.array_equal(found["min"], data.min(axes))
    assert np.array_equal(found["max"], data.max(axes))
    assert np.array_equal(found["range"], np.ptp(data, axes))
    found = measured("range_n_sigma", tensors, dims=dims, num_sigma=2)
    sigma = data.std(axes, ddof=1)
    np.testing.assert_allclose(found["min"], data.mean(axes) - 2 * sigma, rtol=1e-10)
    np.testing.assert_allclose(found["max"], data.mean(axes) + 2 * sigma, rtol=1e-10)
    found = measured("abs_mean", tensors, dims=dims)
    np.testing.assert_allclose(found["abs_mean"], np.abs(data).mean(axes), rtol=1e-12)
    found = measured("range_quantile", tensors, dims=dims, quantile=0.9)
    np.testing.assert_allclose(found["min"], np.quantile(data, 0.1, axes), rtol=1e-12)
    np.testing.assert_allclose(found["max"], np.quantile(data, 0.9, axes), rtol=1e-12)


def test_ranges_of_magnitudes():
    tensors = [x - 100 for x in stream(64)]
    data = np.abs(torch.cat(tensors).double().numpy())
    assert measured("range_min_max", tensors, abs=True)["max"] == data.max()
    np.testing.assert_allclose(
        measured("range_quantile", tensors, abs=True, quantile=0.75)["max"], np.quantile(data, 0.75)
    )
    found = measured("range_n_sigma", tensors, abs=True, var_mode="precise")
    np.testing.assert_allclose(found["max"], data.mean() + 3 * data.std(ddof=1))


def test_a_quantile_of_many_numbers_is_within_its_stated_error():
    tensors = [x - 100 for x in stream(40_000, batches=30)]
    data = torch.cat(tensors).double().numpy()
    statistic = make_statistic("range_quantile", {"quantile": 0.97}, "test")
    for x in tensors:
        statistic.update(x)
    found = statistic.compute()
    assert statistic._sample.columns().shape == (1, 2**16)
    standard_error = np.sqrt(0.97 * 0.03 / 2**16)
    for end, q in (("min", 0.03), ("max", 0.97)):
        rank = (data < found[end].item()).mean()
        assert abs(rank - q) < 4 * standard_error
    assert found["count"] == len(data)


@pytest.mark.parametrize("bins", [4, 64, 256])
def test_a_histogram_that_grows_counts_what_numpy_counts(bins):
    tensors = [x * 10.0**k for k, x in enumerate(stream(50, 3, batches=5))]
    tensors += [torch.zeros(2, 3), torch.tensor([[0.25, -0.5, 4096.0], [1e-30, -1e-30, 1.0]])]
    found = measured("histogram", tensors, dims=[0], bins=bins)
    data = torch.cat(tensors).double().numpy()
    for channel in range(3):
        expected, _ = np.histogram(data[:, channel], found["edges"].numpy())
        assert np.array_equal(found["counts"][channel], expected)
    assert found["counts"].sum() == data.size
    assert np.abs(data).max() < found["edges"][-1] <= 2 * np.abs(data).max()


def test_a_histogram_sets_apart_what_is_not_finite():
    found = measured("histogram", [torch.tensor([1.0, float("inf"), float("nan"), -3.0])])
    assert found["not_finite"] == 2
    assert found["counts"].sum() == 2


def test_the_record_joins_what_came():
    tensors = stream(2, 3)
    found = measured("record", tensors)
    assert torch.equal(found["data"], torch.cat(tensors))
    assert (found["count"], found["size_in_bytes"]) == (7, 7 * 6 * 4)
    assert torch.equal(
        measured("record", tensors, add_new_dim_before_concat=True)["data"][2], tensors[2]
    )
    with pytest.raises(ConfigError, match="cannot be joined"):
        measured("record", [torch.zeros(2, 3), torch.zeros(2, 4)])


@pytest.mark.parametrize("capacity", [10, 100, 1000])
def test_a_reservoir_is_a_uniform_sample_however_it_is_fed(capacity):
    whole, pieces = Reservoir(capacity), Reservoir(capacity)
    data = torch.arange(900.0)
    whole.add(data)
    for part in data.split(37):
        pieces.add(part)
    kept = whole.columns()
    assert torch.equal(kept.sort().values, pieces.columns().sort().values)
    assert len(kept.unique()) == min(capacity, 900)
    assert whole.is_everything == (capacity >= 900)


def test_a_reservoir_favors_no_part_of_the_stream():
    hits = torch.zeros(10)
    for seed in range(300):
        reservoir = Reservoir(20)
        reservoir._generator.manual_seed(seed)
        for part in torch.arange(200).split(30):
            reservoir.add(part)
        hits += torch.bincount(reservoir.columns() // 20, minlength=10)
    assert hits.sum() == 6000
    assert ((hits - 600).abs() < 4 * np.sqrt(600)).all()


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("variance_onlin", {}, "did you mean 'variance_online'"),
        ("range_quantile", {"quantil": 0.9}, "did you mean 'quantile'"),
        ("range_quantile", {"quantile": 0.2}, "expected 0.5 to 1"),
        ("histogram", {"bins": 100}, "power of two"),
        ("range_min_max", {"dims": "some"}, "dims"),
    ],
)
def test_wrong_settings_are_named(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_statistic(name, settings, "test")


def test_streams_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"from \(3,\) to \(4,\)"):
        measured("variance_online", [torch.zeros(2, 3), torch.zeros(2, 4)], dims=[0])
    with pytest.raises(ConfigError, match="got axis 2, the tensor has 2 axes"):
        measured("range_min_max", [torch.zeros(2, 3)], dims=[2])


@pytest.mark.parametrize("name", STATISTICS)
def test_every_statistic_takes_batches_of_any_size_and_refuses_an_empty_stream(name):
    assert issubclass(STATISTICS[name], Statistic)
    assert STATISTICS[name].__doc__
    found = measured(name, [torch.tensor(2.0), torch.tensor(3)])
    assert found["count"] == 2
    empty = make_statistic(name, None, "test")
    with pytest.raises(ConfigError, match="nothing was observed"):
        empty.compute()
    assert measured(name, [torch.zeros(0), torch.ones(1), torch.zeros(0)])["count"] in (1, 3)
