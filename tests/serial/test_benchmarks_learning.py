"""The learning benchmarks: what they find is what scikit-learn finds, on one rank."""

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.learning.digits import part

pytest.importorskip("sklearn")

from benchmarks.learning.digits import digits
from benchmarks.learning.tasks import NEIGHBOURS, clusters, neighbours, product


@pytest.fixture(scope="module")
def data():
    return digits(2)


def test_neighbours_are_those_of_others(data):
    from sklearn.neighbors import KNeighborsClassifier

    theirs = KNeighborsClassifier(NEIGHBOURS, algorithm="brute").fit(data.images, data.labels)
    found = theirs.score(data.tests, data.answers)
    assert found > 0.95
    assert neighbours(MPI.COMM_SELF, data) == pytest.approx(found, abs=0.006)  # where votes are equal


def test_clusters_are_as_good_as_those_of_others(data):
    from sklearn.cluster import KMeans

    labels = KMeans(10, n_init=3, random_state=0).fit_predict(data.images)
    table = np.zeros((10, 10))
    np.add.at(table, (labels, data.labels), 1)
    assert clusters(MPI.COMM_SELF, data) > table.max(axis=1).sum() / table.sum() - 0.1


def test_a_product_without_loss_is_exact(data):
    assert product(MPI.COMM_SELF, data) == pytest.approx(1, abs=1e-6)


class Noisy:
    """A communicator of one rank that changes what it broadcasts."""

    def __init__(self, noise):
        self.noise = noise

    def __getattr__(self, name):
        return getattr(MPI.COMM_SELF, name)

    def Bcast(self, buffer):
        buffer += np.float32(self.noise)


def test_a_product_of_what_was_changed_is_less_right(data):
    errors = [1 - product(Noisy(noise), data) for noise in (1e-4, 1e-2)]
    assert 1e-5 < errors[0] < errors[1] < 0.1


def test_images_to_test_with_are_no_others(data):
    assert len(data.images) == 2 * 1437
    assert len(data.tests) == 360
    distances = ((data.tests[:, None] - data.images[None, :500]) ** 2).sum(axis=2)
    assert distances.min() > 0


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_are_all_rows_once(size):
    rows = [list(range(100))[part(100, rank, size)] for rank in range(size)]
    assert [row for share in rows for row in share] == list(range(100))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
