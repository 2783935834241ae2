"""Classes: machines with equal capacity, and collections with similar requests, found by k-means."""

import numpy as np

from bilinq.arrays import Array, IntArray, count
from bilinq.errors import BadInput

RESTARTS = 100
"""Starts of k-means, of which the best result is kept."""
STEPS = 30
"""Steps of each; on the shipped extract it stands still after about twenty."""


def machine_classes(capacity: Array) -> tuple[Array, IntArray]:
    """Return the distinct capacities (J, 2) of machines (M, 2), most machines first, and the class of each machine (M,)."""
    kinds, label, number = np.unique(capacity, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((kinds[:, 1], kinds[:, 0], -number))
    return kinds[order], np.argsort(order)[label.reshape(-1)]


def job_classes(request: Array, weight: Array, classes: int, seed: int) -> IntArray:
    """Return the class of each collection (C,), by k-means on its mean request (C, 2) of CPU and memory.

    The class with the most collections comes first, the others by falling CPU request, averaged with `weight` (C,): the
    order in which the paper's authors have them, as far as sizes tell.
    """
    k = count("classes", classes)
    distinct = len(np.unique(request, axis=0))
    if k > distinct:
        raise BadInput(f"classes must be at most {distinct}, the number of different collections; got {k}")
    label = _k_means(request, k, count("seed", seed, least=0))
    size = np.bincount(label, minlength=k)
    cpu = np.bincount(label, weight * request[:, 0], k) / np.bincount(label, weight, k)
    order = np.argsort(-cpu, kind="stable")
    largest = order[np.argmax(size[order])]
    order = np.concatenate([[largest], order[order != largest]])
    return np.argsort(order)[label]


def _k_means(points: Array, k: int, seed: int) -> IntArray:
    """Return the labels (C,) with the least sum of squared distances over many starts."""
    from scipy.cluster.vq import ClusterError, kmeans2

    rng = np.random.default_rng(seed)
    best, least = np.zeros(0, np.int64), np.inf
    for _ in range(RESTARTS):
        try:
            centre, label = kmeans2(points, k, iter=STEPS, minit="++", missing="raise", seed=rng)
        except ClusterError:  # a class ran empty
            continue
        spread = float(((points - centre[label]) ** 2).sum())
        if np.unique(label).size == k and spread < least * (1.0 - 1e-12):
            best, least = label.astype(np.int64), spread
    if not best.size:
        raise BadInput(f"classes must be fewer for these collections; k-means found no {k} of them that are not empty")
    return best
