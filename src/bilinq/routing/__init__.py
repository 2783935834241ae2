"""Virtual time, one job at a time, servers that stay busy: workloads, routers, their replay, and what logs tell."""

from bilinq.routing.records import Replay
from bilinq.routing.replay import replay
from bilinq.routing.router import Dispatcher, FleetView, Router, WaitingJob
from bilinq.routing.scheduler_router import SchedulerRouter
from bilinq.routing.workload import Workload
from bilinq.routing.workload_rules import Outage

__all__ = [
    "Dispatcher",
    "FleetView",
    "Outage",
    "Replay",
    "Router",
    "SchedulerRouter",
    "WaitingJob",
    "Workload",
    "replay",
]
