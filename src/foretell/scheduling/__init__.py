"""Scheduling: a discrete-event simulation of shared GPUs, and policies that pack jobs onto them."""

from foretell.scheduling.cluster import METHODS, Cluster, Place, PlaceKind, build_cluster, kind_name
from foretell.scheduling.jobs import Demand, Job, Profile, Run
from foretell.scheduling.policies.choice import POLICIES, make_policy
from foretell.scheduling.policies.policy import Policy
from foretell.scheduling.simulation import simulate
from foretell.scheduling.slowdowns import Contention, MeasuredSlowdowns, Slowdowns
from foretell.scheduling.totals import Totals

__all__ = [
    "METHODS",
    "POLICIES",
    "Cluster",
    "Contention",
    "Demand",
    "Job",
    "MeasuredSlowdowns",
    "Place",
    "PlaceKind",
    "Policy",
    "Profile",
    "Run",
    "Slowdowns",
    "Totals",
    "build_cluster",
    "kind_name",
    "make_policy",
    "simulate",
]
