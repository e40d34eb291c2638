"""Profiling: the registry of zoos: where models come from.

>>> sorted(ZOOS)
['hf', 'llm', 'synthetic', 'timm', 'torchvision', 'wild']
"""

from collections.abc import Iterable
from contextlib import suppress

from foretell.errors import ForetellError
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.zoo import Built, Zoo
from foretell.registry import Registry

ZOOS = Registry(
    "zoo",
    {
        "timm": "foretell.profiling.zoos.timm_models:TimmZoo",
        "torchvision": "foretell.profiling.zoos.torchvision_models:TorchvisionZoo",
        "hf": "foretell.profiling.zoos.huggingface:EncoderZoo",
        "llm": "foretell.profiling.zoos.huggingface:CausalZoo",
        "synthetic": "foretell.profiling.zoos.synthetic:SyntheticZoo",
        "wild": "foretell.profiling.zoos.wild.zoo:WildZoo",
    },
)


def load_zoo(name: str) -> Zoo:
    """The zoo called ``name``."""
    zoo: Zoo = ZOOS.load(name)()
    return zoo


def build(spec: str) -> Built:
    """Build the model of a spec; its weights are drawn later, on the device."""
    from foretell.profiling.skeleton import lazy_initialisation

    zoo = load_zoo(parse_spec(spec).zoo)
    prepare = getattr(zoo, "prepare", None)
    if prepare is not None:
        prepare()
    with lazy_initialisation():
        return zoo.build(spec)


def preload(zoos: Iterable[str]) -> None:
    """Import the libraries of some zoos; a missing one is reported only when one of its models is built."""
    for zoo in zoos:
        with suppress(ForetellError):
            prepare = getattr(load_zoo(zoo), "prepare", None)
            if prepare is not None:
                prepare()
