"""The scheduler to embed in a program: no clock, no threads, no I/O."""

from bilinq.scheduler.classes import JobClass, RewardRange, ServerClass
from bilinq.scheduler.ledger import Job
from bilinq.scheduler.scheduler import Assignment, Observation, Scheduler

__all__ = ["Assignment", "Job", "JobClass", "Observation", "RewardRange", "Scheduler", "ServerClass"]
