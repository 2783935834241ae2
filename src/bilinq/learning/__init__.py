"""How mean rewards are learnt: the abstract `Learner` and its kinds."""

from bilinq.learning.bilinear import Bilinear, BilinearState, Health, health_of
from bilinq.learning.learner import Counts, Known, Learner, Outcome, PerJob, PerPair

__all__ = [
    "Bilinear", "BilinearState", "Counts", "Health", "Known", "Learner", "Outcome", "PerJob", "PerPair", "health_of",
]  # fmt: skip
