"""What is fuzzed: for every reader the input that belongs to a number."""

import json
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random

from foretell.graph.ir import serde
from fuzz.config_values import make_config
from fuzz.damage import damage, damage_json
from fuzz.onnx_models import make_model

SEEDS = Path(__file__).parent / "seeds"


def make_input(reader: str, seed: int, number: int) -> tuple[str, bytes]:
    """The suffix and the content of one input; the same for the same numbers."""
    random = Random(f"{reader} {seed} {number}")
    return SUFFIXES[reader], MAKERS[reader](random)


def _onnx(random: Random) -> bytes:
    while True:
        try:
            model = make_model(random).SerializeToString()
            break
        except (TypeError, ValueError):
            continue  # onnx's helpers refuse to write some of what was drawn
    return model if random.random() < 0.85 else damage(model, random, model)


@cache
def _seeds(suffix: str) -> tuple[bytes, ...]:
    return tuple(p.read_bytes() for p in sorted(SEEDS.glob(f"*{suffix}")))


def _pt2(random: Random) -> bytes:
    seed = random.choice(_seeds(".pt2"))
    if random.random() < 0.15:
        return damage(seed, random, seed)
    members = _members(seed)
    for name in members:
        if name.endswith(".json") and "/models/" in name:
            if random.random() < 0.85:
                members[name] = json.dumps(damage_json(json.loads(members[name]), random)).encode()
            else:
                members[name] = damage(members[name], random)
    return _zipped(members, random)


def _torchscript(random: Random) -> bytes:
    seed = random.choice(_seeds(".ts"))
    if random.random() < 0.3:
        return damage(seed, random, seed)
    members = _members(seed)
    name = random.choice([n for n in members if n.endswith((".py", ".pkl"))])
    members[name] = damage(members[name], random, members[name])
    return _zipped(members, random)


def _graph(random: Random) -> bytes:
    seed = random.choice(_seeds(".fgraph"))
    draw, text = random.random(), serde.unpack(seed)
    if draw < 0.1:
        return damage(seed, random, seed)
    if draw < 0.2:
        text = damage(text, random, text)
    else:
        text = json.dumps(damage_json(json.loads(text), random, depth=8)).encode()
    return serde.MAGIC + zlib.compress(text, 1)


def _config(random: Random) -> bytes:
    text = json.dumps(make_config(random)).encode()
    return text if random.random() < 0.8 else damage(text, random)


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def _zipped(members: dict[str, bytes], random: Random) -> bytes:
    """The members as an archive; now and then one is missing, doubled or compressed."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            draw = random.random()
            if draw > 0.01:
                archive.writestr(name, content, zipfile.ZIP_DEFLATED if draw < 0.03 else zipfile.ZIP_STORED)
            if draw > 0.99:
                archive.writestr(f"{name}.more", content)
    return file.getvalue()


MAKERS: dict[str, Callable[[Random], bytes]] = {
    "onnx": _onnx,
    "pt2": _pt2,
    "torchscript": _torchscript,
    "config": _config,
    "graph": _graph,
}
SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".ts", "config": ".json", "graph": ".fgraph"}
