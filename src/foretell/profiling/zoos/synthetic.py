"""Profiling: random networks with all their parameters in the spec.

They are drawn from a seed and can be rebuilt from the spec alone. They cover sizes and combinations that published
models do not have.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import Spec, Value, parse_spec
from foretell.profiling.zoos.zoo import Built, Entry, image_inputs

Drawn = tuple[str, dict[str, Value], tuple[int, ...]]
_ACTS = ("relu", "relu", "gelu", "silu", "tanh", "hardswish", "leaky")
_MAX_WEIGHTS = 1.2e9


def _join(values: Sequence[int]) -> str:
    return "-".join(map(str, values))


def _mlp(draw: random.Random) -> Drawn:
    # depth 3 to 10, width a power of two up to 16,384: the space of a published study of 320,000 such networks
    while True:
        widths = [2 ** draw.randint(0, 14) for _ in range(draw.randint(4, 11))]
        if draw.random() < 0.3:
            widths = [max(1, int(width * draw.uniform(0.6, 1.4))) for width in widths]
        if sum(a * b for a, b in itertools.pairwise(widths)) <= _MAX_WEIGHTS:
            return "mlp", {"widths": _join(widths), "act": draw.choice(_ACTS)}, (widths[0],)


def _cnn(draw: random.Random) -> Drawn:
    size = draw.choice((16, 28, 32, 48, 56, 64, 96, 112, 128, 160, 224))
    depth = draw.randint(3, 10)
    limit = 9 if size > 96 else 10
    channels = [draw.choice((1, 3, 3, 16))] + [2 ** draw.randint(0, limit) for _ in range(depth)]
    kernels = [draw.choice((1, 3, 3, 3, 5, 7)) for _ in range(depth)]
    strides, left = [], size
    for _ in range(depth):
        stride = 2 if left > 7 and draw.random() < 0.35 else 1
        left //= stride
        strides.append(stride)
    arguments: dict[str, Value] = {"channels": _join(channels), "kernels": _join(kernels), "strides": _join(strides)}
    arguments |= {"norm": draw.choice(("none", "none", "batch")), "act": draw.choice(_ACTS)}
    return "cnn", arguments, (channels[0], size, size)


def _cnn1d(draw: random.Random) -> Drawn:
    depth, length = draw.randint(3, 10), draw.choice((128, 256, 512, 1024, 4096, 16000))
    channels = [draw.choice((1, 2, 16, 40, 80))] + [2 ** draw.randint(3, 9) for _ in range(depth)]
    arguments: dict[str, Value] = {"dims": 1, "channels": _join(channels), "act": draw.choice(_ACTS)}
    arguments |= {"kernels": _join([draw.choice((1, 3, 5, 7, 9, 15)) for _ in range(depth)])}
    arguments |= {"strides": _join([draw.choice((1, 1, 1, 2)) for _ in range(depth)])}
    arguments |= {"norm": draw.choice(("none", "batch")), "dilation": draw.choice((1, 1, 2, 4))}
    return "cnn", arguments, (channels[0], length)


def _cnn3d(draw: random.Random) -> Drawn:
    depth, size = draw.randint(3, 7), draw.choice((16, 24, 32, 48, 64))
    channels = [draw.choice((1, 3))] + [2 ** draw.randint(2, 7) for _ in range(depth)]
    arguments: dict[str, Value] = {"dims": 3, "channels": _join(channels), "act": "relu"}
    arguments |= {"kernels": _join([draw.choice((1, 3, 3, 3, 5)) for _ in range(depth)])}
    arguments |= {"strides": _join([draw.choice((1, 1, 2)) for _ in range(depth)])}
    arguments |= {"norm": draw.choice(("none", "batch", "group"))}
    return "cnn", arguments, (channels[0], draw.choice((8, 16, 32)), size, size)


def _residual(draw: random.Random) -> Drawn:
    arguments: dict[str, Value] = {
        "width": draw.choice((16, 24, 32, 40, 48, 64, 80, 96, 128)),
        "blocks": _join([draw.randint(1, 5) for _ in range(draw.randint(2, 4))]),
        "kernel": draw.choice((3, 3, 3, 5, 7)),
        "stem": draw.choice((3, 4, 5, 7)),
        "groups": draw.choice((1, 1, 1, 2, 4, 8)),
        "norm": draw.choice(("batch", "batch", "batch", "group", "instance", "none")),
        "act": draw.choice(_ACTS),
    }
    if arguments["stem"] == 4:
        arguments["stem"] = 9
    size = draw.choice((64, 96, 128, 160, 192, 224, 224, 256))
    return "residual", arguments, (3, size, size)


def _mobile(draw: random.Random) -> Drawn:
    name, arguments, shape = _residual(draw)
    arguments |= {"expand": draw.choice((2, 3, 4, 6)), "se": draw.random() < 0.4}
    arguments["width"] = draw.choice((16, 16, 24, 32, 40, 48, 64))
    del arguments["groups"]
    return name, arguments, shape


def _transformer(draw: random.Random) -> Drawn:
    head, heads = draw.choice((16, 32, 40, 64, 64, 64, 80, 96, 128)), draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 20))
    width = head * heads
    arguments: dict[str, Value] = {"width": width, "heads": heads, "depth": draw.randint(1, 16)}
    arguments |= {"inner": int(width * draw.choice((1, 2, 3, 4, 4, 5))), "act": draw.choice(("gelu", "relu", "silu"))}
    arguments |= {"causal": draw.random() < 0.3, "classes": draw.choice((10, 100, 1000, 8000))}
    length = draw.choice((16, 32, 49, 64, 100, 128, 196, 197, 256, 384, 512, 577, 1024, 2048))
    return "transformer", arguments, (length, width)


def _recurrent(draw: random.Random) -> Drawn:
    inputs = draw.choice((16, 40, 64, 100, 128, 256, 512))
    arguments: dict[str, Value] = {"cell": draw.choice(("lstm", "lstm", "gru", "rnn")), "inputs": inputs}
    arguments |= {"hidden": draw.choice((16, 32, 64, 128, 200, 256, 512, 650, 1024)), "layers": draw.randint(1, 4)}
    arguments |= {"bidirectional": draw.random() < 0.3}
    return "recurrent", arguments, (draw.choice((8, 16, 32, 50, 64, 100, 128, 200, 256)), inputs)


def _unet(draw: random.Random) -> Drawn:
    arguments: dict[str, Value] = {"base": draw.choice((8, 16, 24, 32, 48, 56, 64)), "depth": draw.randint(2, 4)}
    arguments |= {"norm": draw.choice(("batch", "batch", "group", "none")), "act": draw.choice(_ACTS)}
    arguments |= {"classes": draw.choice((1, 2, 21))}
    return "unet", arguments, (3, 32 * draw.randint(2, 8), 32 * draw.randint(2, 8))


def _lenet(draw: random.Random) -> Drawn:
    return "lenet", {"scale": draw.choice((1, 2, 3, 4, 8, 16)), "act": draw.choice(_ACTS)}, (1, 28, 28)


def _chain(draw: random.Random) -> Drawn:
    from foretell.profiling.zoos.networks import LINKS

    size, channels = (
        draw.choice((7, 14, 20, 28, 50, 56, 90, 112, 150)),
        draw.choice((3, 16, 24, 48, 64, 100, 128, 256, 384)),
    )
    grown, ops = 1.0, []
    for _ in range(draw.randint(2, 9)):
        name = draw.choice(LINKS)
        factor = 2.0 if name in ("up2", "near2", "up2t") else 0.5 if name in ("max2", "avg2") else 1.0
        if grown * factor > 2 or grown * factor < 0.25:
            continue
        grown *= factor
        ops.append(name)
    return "chain", {"ops": "-".join(ops or ["conv3"]), "channels": channels}, (channels, size, size)


def _operators(draw: random.Random) -> Drawn:
    arguments: dict[str, Value] = {"seed": draw.randrange(1 << 30), "count": 250}
    if draw.random() < 0.6:
        arguments["focus"] = "products"
    return "operators", arguments, (1,)


def _spread(draw: random.Random) -> Drawn:
    return "operators", {"seed": draw.randrange(1 << 30), "count": 100, "focus": "spread"}, (1,)


_DRAWS: Mapping[str, Callable[[random.Random], Drawn]] = MappingProxyType(
    {
        "mlp": _mlp,
        "cnn": _cnn,
        "cnn1d": _cnn1d,
        "cnn3d": _cnn3d,
        "residual": _residual,
        "mobile": _mobile,
        "transformer": _transformer,
        "recurrent": _recurrent,
        "unet": _unet,
        "lenet": _lenet,
        "chain": _chain,
    }
)
FAMILIES = tuple(f"synthetic-{name}" for name in _DRAWS)
# how many operators of a subject one bench has: those with many kernels each have fewer
_SUBJECTS = MappingProxyType(
    {
        "signals": 120, "norms": 120, "recurrence": 30, "contractions": 120, "attention": 60, "spectra": 120,
        "elementwise": 150, "gathers": 120, "pictures": 100, "first_layers": 200, "transposed": 200,
        "convolutions": 250, "few_rows": 300, "short_sums": 250, "long_rows": 250,
    }
)  # fmt: skip
_TRAINED = 0.6  # of the operators of a subject; their gradients take about twice as long


def _subject(focus: str, count: int, *, trained: bool) -> Callable[[random.Random], Drawn]:
    def make(draw: random.Random) -> Drawn:
        arguments: dict[str, Value] = {"seed": draw.randrange(1 << 30), "count": count, "focus": focus}
        return "operators", {**arguments, "trained": True} if trained else arguments, (1,)

    return make


_BENCHES: Mapping[str, Callable[[random.Random], Drawn]] = MappingProxyType(
    {"operators": _operators, "spread": _spread}
    | {focus: _subject(focus, count, trained=False) for focus, count in _SUBJECTS.items()}
    | {f"{focus}-trained": _subject(focus, int(_TRAINED * count), trained=True) for focus, count in _SUBJECTS.items()}
)


def known() -> Iterator[Entry]:
    """Networks from publications: the U-Net for temperature downscaling, and LeNet-5."""
    downscaling: dict[str, Value] = {"base": 56, "depth": 3, "convs": "2-1-1-1", "up": 2, "rise": 2, "classes": 2}
    yield Entry(str(Spec("synthetic", "unet", downscaling)), "synthetic-unet", (3, 96, 128))
    yield Entry(str(Spec("synthetic", "lenet", {"scale": 1, "act": "tanh"})), "synthetic-lenet", (1, 28, 28))


class SyntheticZoo:
    """``synthetic:KIND?parameter=value``."""

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """The known networks, and ``part.models`` random ones spread over the kinds.

        A bench of operators is not a network: it is drawn only where ``part.families`` names it.
        """
        named = {name: make for name, make in _BENCHES.items() if f"synthetic-{name}" in part.families}
        draws = {**_DRAWS, **named}
        entries_by_spec = {entry.spec: entry for entry in known()}
        rounds = -(-part.models // (len(part.families) or len(draws)))
        for number in range(rounds):
            for family, make in draws.items():
                # a generator for each network: adding a kind does not change the others
                name, arguments, shape = make(random.Random(f"{seed}/{part.name}/{family}/{number}"))
                entry = Entry(str(Spec("synthetic", name, arguments)), f"synthetic-{family}", shape)
                entries_by_spec.setdefault(entry.spec, entry)
        return [entry for entry in entries_by_spec.values() if not part.families or entry.family in part.families]

    def build(self, spec: str) -> Built:
        """The network of a spec, in eval mode."""
        from foretell.profiling.zoos.networks import NETWORKS

        parsed = parse_spec(spec)
        if parsed.name not in NETWORKS:
            from foretell.errors import UnknownNameError
            from foretell.registry import did_you_mean

            raise UnknownNameError(f"Unknown synthetic network {parsed.name!r}.{did_you_mean(parsed.name, NETWORKS)}")
        try:
            network = NETWORKS[parsed.name](parsed.arguments)
        except (KeyError, ValueError, TypeError) as error:
            from foretell.errors import InputError

            draw = {**_DRAWS, **_BENCHES}[parsed.name]
            _, arguments, _ = draw(random.Random(0))
            example = Spec("synthetic", parsed.name, arguments)
            reason = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            raise InputError(f"Cannot make {spec}: {reason}. For example: {example}") from error
        return Built(network.eval(), image_inputs)
