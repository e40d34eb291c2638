"""Scheduling: the policies by name. A policy is one class and one line of `POLICIES`."""

from foretell.registry import Registry
from foretell.scheduling.policies.policy import Apart, Policy
from foretell.scheduling.slowdowns import Margins, Slowdowns

POLICIES = Registry(
    "policy",
    {
        "slowdown": "foretell.scheduling.policies.slowdown_packing:SlowdownPacking",
        "exclusive": "foretell.scheduling.policies.load_packing:ExclusivePacking",
        "slots": "foretell.scheduling.policies.load_packing:SlotPacking",
        "utilisation": "foretell.scheduling.policies.load_packing:UtilisationPacking",
        "occupancy": "foretell.scheduling.policies.load_packing:OccupancyPacking",
        # knows the true slowdowns, as nobody does before the jobs have run: how far the others are from it
        "oracle": "foretell.scheduling.policies.slowdown_packing:OraclePacking",
    },
)


def make_policy(
    name: str, predicted: Slowdowns, true: Slowdowns, apart: Apart = (), *, margin: float | Margins | None = None
) -> Policy:
    """The policy of a name. Only the oracle gets the true slowdowns, and only ``slowdown`` leaves a margin.

    >>> from foretell.scheduling.slowdowns import Contention
    >>> make_policy("best", Contention(), Contention())
    Traceback (most recent call last):
    ...
    foretell.errors.UnknownNameError: Unknown policy 'best'. Choose from: exclusive, occupancy, oracle, slots, \
slowdown, utilisation.
    """
    options = {"margin": margin} if name == "slowdown" and margin is not None else {}
    policy: Policy = POLICIES.load(name)(true if name == "oracle" else predicted, apart, **options)
    return policy
