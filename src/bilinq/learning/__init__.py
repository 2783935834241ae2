"""What pairs of jobs and servers are worth: the abstract `Learner` and its kinds for slots, and `PairModel`."""

from bilinq.learning.bilinear import Bilinear, BilinearState, Health, health_of, merged
from bilinq.learning.learner import Counts, Known, Learner, Outcome, PerJob, PerPair
from bilinq.learning.pair_model import PairModel

__all__ = [
    "Bilinear", "BilinearState", "Counts", "Health", "Known", "Learner", "Outcome", "PairModel", "PerJob", "PerPair",
    "health_of", "merged",
]  # fmt: skip
