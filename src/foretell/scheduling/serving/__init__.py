"""Scheduling: serving: a discrete-event simulation of servers of language models."""

from foretell.scheduling.serving.requests import (
    Arrival,
    closed_loop,
    fixed_lengths,
    poisson_arrivals,
    read_azure,
    trace_arrivals,
)
from foretell.scheduling.serving.server import ENGINES, Rules, StepPower, StepTime
from foretell.scheduling.serving.simulation import Deployment, simulate_serving
from foretell.scheduling.serving.step_times import remembered
from foretell.scheduling.serving.totals import Limits, ServingTotals

__all__ = [
    "ENGINES",
    "Arrival",
    "Deployment",
    "Limits",
    "Rules",
    "ServingTotals",
    "StepPower",
    "StepTime",
    "closed_loop",
    "fixed_lengths",
    "poisson_arrivals",
    "read_azure",
    "remembered",
    "simulate_serving",
    "trace_arrivals",
]
