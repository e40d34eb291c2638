"""Small clusters and jobs for the tests of scheduling."""

import random
from collections.abc import Iterator

from foretell.devices import find_device
from foretell.scheduling import Cluster, Demand, Job, PlaceKind, Profile, build_cluster

H200 = find_device("h200")
KIND = PlaceKind("h200, mps", H200, None, "mps", 3)
ALONE = PlaceKind("h200", H200, None, "exclusive", 1)


def cluster(gpus: int, kind: PlaceKind = KIND) -> Cluster:
    return build_cluster([(kind,)] * gpus)


def profile(number: int, kind: PlaceKind = KIND, limit: float | None = None, **numbers: float) -> Profile:
    return Profile(number, f"p{number}", {kind.name: Demand(**({"alone_ms": 1000.0} | numbers))}, limit)


def profiles(count: int, seed: int = 0, limit: float | None = None) -> list[Profile]:
    rng = random.Random(seed)
    return [
        profile(
            number, limit=limit, alone_ms=rng.uniform(1, 1000), memory_mib=rng.uniform(1000, 70_000),
            occupancy=rng.uniform(0.1, 0.9), utilisation=rng.uniform(0.2, 1.0), sm_share=rng.uniform(0.1, 1.0),
            bandwidth_share=rng.uniform(0.0, 0.9),
        )
        for number in range(count)
    ]  # fmt: skip


def jobs(kinds: list[Profile], count: int, every_s: float, seed: int = 0) -> Iterator[Job]:
    rng, now_s = random.Random(seed), 0.0
    for number in range(count):
        kind = rng.choice(kinds)
        yield Job(f"j{number}", kind, now_s, rng.expovariate(1 / 100.0) * 1000 / kind.best_ms)
        now_s += rng.expovariate(1 / every_s)
