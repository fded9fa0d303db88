"""The schedule simulator: an event engine in integer cycles, and the schedulers that feed it.

`simulate` runs a list of tile costs under a scheduler and returns a `Run`; `metrics` and `Run.events`
read it. Nothing here prints.
"""

from tilewright.sim.metrics import Metrics, metrics
from tilewright.sim.model import (
    NO_OVERHEADS,
    ORDERS,
    SCHEDULERS,
    UNDISTURBED,
    Busy,
    Clc,
    Disturbance,
    Order,
    Overheads,
    Priority,
    Scheduler,
    WorkerClass,
)
from tilewright.sim.run import Event, EventKind, Run
from tilewright.sim.simulate import simulate

__all__ = [
    "NO_OVERHEADS",
    "ORDERS",
    "SCHEDULERS",
    "UNDISTURBED",
    "Busy",
    "Clc",
    "Disturbance",
    "Event",
    "EventKind",
    "Metrics",
    "Order",
    "Overheads",
    "Priority",
    "Run",
    "Scheduler",
    "WorkerClass",
    "metrics",
    "simulate",
]
