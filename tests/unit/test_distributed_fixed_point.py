"""The fixed point over few pairs of each row: the same as over all, exactly zero where idle, and used where it must be."""

import numpy as np
import pytest

from bilinq.arrays import Array
from bilinq.distributed import Barrier, Penalty, Power, System, fixed_point
from bilinq.distributed.interior import AllPairs, SomePairs, _dense, _sparse, residual


def rewards(kind: str, rows: int, columns: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "any":
        return rng.uniform(0.0, 1.0, (rows, columns))
    if kind == "ties":
        return np.ones((rows, columns))
    job, server = rng.uniform(0.0, 1.0, (rows, 3)), rng.uniform(0.0, 1.0, (columns, 3))
    return np.asarray(job @ server.T / 3.0)


def system(kind: str, penalty: Penalty, rows: int = 600, columns: int = 60, seed: int = 1) -> System:
    """Some job classes have no jobs, some server classes no servers."""
    rng = np.random.default_rng(seed)
    queue, capacity = rng.uniform(0.0, 20.0, rows), rng.uniform(1.0, 20.0, columns)
    queue[::50], capacity[::20] = 0.0, 0.0
    return System(queue, rewards(kind, rows, columns, seed), capacity, 10.0, penalty=penalty)


@pytest.mark.parametrize("kind", ["any", "bilinear", "ties"])
@pytest.mark.parametrize("penalty", [Power(2.0), Power(8.0), Barrier()], ids=repr)
def test_few_pairs_suffice(kind: str, penalty: Penalty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row sums and loads are unique, so both ways must find the same; ties may be split in another way."""
    given = system(kind, penalty)
    whole = given.equilibrium
    monkeypatch.setattr(fixed_point, "LARGE", 1000)
    monkeypatch.setattr(fixed_point, "_over_all", lambda *_: pytest.fail("pairs were missing to the end"))
    few = system(kind, penalty).equilibrium
    assert max(float(whole.residual), float(few.residual)) < 1e-11
    np.testing.assert_allclose(few.expected.sum(axis=1), whole.expected.sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(few.price, whole.price, rtol=1e-9)
    assert not few.expected[::50].any()
    assert not few.expected[:, ::20].any()


def test_idle_pairs_are_exactly_zero() -> None:
    """Rewards in general position: fewer used pairs than nodes. Here one more seems used at first and closes a cycle."""
    rng = np.random.default_rng([0, 7])
    region = np.arange(1000) // 100, np.arange(100) // 10
    reward = rng.uniform(0, 1, (1000, 100)) - np.where(region[0][:, None] == region[1], 0.0, 0.2)
    queue = rng.uniform(0.1, 1.9, 1000)
    given = System(1.2e6 * queue / queue.sum(), reward, np.full(100, 1000.0), 10.0)
    assert np.count_nonzero(given.fixed_point()) < 1100
    assert float(given.equilibrium.residual) < 1e-13


def test_missing_pairs_send_the_search_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = system("any", Power(2.0)).fixed_point()
    monkeypatch.setattr(fixed_point, "LARGE", 1000)
    monkeypatch.setattr(fixed_point, "ATTEMPTS", 0)
    np.testing.assert_allclose(system("any", Power(2.0)).fixed_point(), whole, atol=1e-12)


def test_batches_without_jobs_or_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "LARGE", 1000)
    one = system("any", Power(2.0))
    queue, capacity = (
        np.array([one.queue, 0.0 * one.queue, one.queue]),
        np.array([one.capacity] * 2 + [0.0 * one.capacity]),
    )
    batch = System(queue, one.reward, capacity, 10.0)
    np.testing.assert_allclose(batch.fixed_point()[0], one.fixed_point(), atol=1e-12)
    assert not batch.fixed_point()[1:].any()


def test_a_missing_pair_shows_in_the_certificate() -> None:
    """The residual covers all pairs: without a used one it is no longer small."""
    given = system("any", Power(2.0))
    a, c, n = given.flat[:3]
    y = given.fixed_point()
    y[3] = 0.0
    price = given.penalty.price(y.sum(axis=0), np.where(n > 0.0, n, 1.0)[0])
    assert residual(y[None], a, c + price, (a > 0.0)[:, :, None] & (n > 0.0)[:, None, :])[0] > 0.1


def test_some_pairs_are_all_of_them_when_all_are_chosen() -> None:
    rng = np.random.default_rng(5)
    value, scale, price = rng.random((1, 7, 4)), rng.random((1, 7)), rng.random((1, 4))
    chosen = rng.permuted(np.tile(np.arange(4), (7, 1)), axis=1)
    some, every = SomePairs(chosen, 4), AllPairs()
    mixed = np.take_along_axis(value, chosen[None], axis=2)
    np.testing.assert_allclose(some.loads(mixed), every.loads(value))
    np.testing.assert_allclose(some.gram(mixed, scale), every.gram(value, scale))
    np.testing.assert_allclose(some.spread(price)[0, 2], price[0, chosen[2]])
    assert some.server(np.array([2]), np.array([1])) == chosen[2, 1]


def test_sparse_and_dense_steps_agree() -> None:
    """A forest with rows and columns that are left out, a cycle, and right sides that a cycle cannot meet exactly."""
    i, j = np.array([0, 0, 2, 2, 5]), np.array([1, 4, 1, 4, 1])
    rng = np.random.default_rng(6)
    row, column, off = rng.uniform(1.0, 2.0, 6)[i], rng.uniform(1.0, 2.0, 5)[j], rng.normal(size=5)
    for part in (slice(1, 5), slice(0, 5)):
        given = i[part], j[part], row[part], column[part], off[part]
        np.testing.assert_allclose(_dense(*given), _sparse(*given), rtol=1e-4)
