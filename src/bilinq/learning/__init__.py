"""How mean rewards are learnt: the abstract `Learner` and its kinds."""

from bilinq.learning.bilinear import Bilinear, BilinearState
from bilinq.learning.counting import Counts, Known, PerJob, PerPair
from bilinq.learning.learner import Learner, Outcome

__all__ = ["Bilinear", "BilinearState", "Counts", "Known", "Learner", "Outcome", "PerJob", "PerPair"]
