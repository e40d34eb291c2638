"""Damage to a file: bytes that are changed, cut, doubled, moved or taken from another file."""

from random import Random

ODD = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xed\xa0\x80", b"9" * 19)


def damage(data: bytes, random: Random, other: bytes = b"") -> bytes:
    """The data with one to eight wounds."""
    wounded = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if not wounded:
            return bytes(wounded)
        at, length = random.randrange(len(wounded)), random.choice((1, 1, 2, 4, 16, 64))
        kind = random.randrange(7)
        if kind == 0:
            wounded[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            wounded[at] = random.randrange(256)
        elif kind == 2:
            del wounded[at : at + length]
        elif kind == 3:
            wounded[at:at] = wounded[at : at + length] * random.choice((1, 2, 50))
        elif kind == 4:
            wounded[at : at + length] = random.choice(ODD)
        elif kind == 5 and other:
            start = random.randrange(len(other))
            wounded[at:at] = other[start : start + 4 * length]
        elif kind == 6 and random.random() < 0.3:
            del wounded[at:]
    return bytes(wounded)


def damage_json(value: object, random: Random, depth: int = 0) -> object:
    """The JSON value with a few of its parts replaced, removed or doubled."""
    if random.random() < 0.0006 * (1 + depth / 4):
        return random.choice(
            (
                None,
                True,
                -1,
                0,
                1,
                2**31,
                2**62,
                1e300,
                -0.5,
                "",
                "x",
                "\ud800",
                [],
                {},
                [[]],
                {"as_int": 2**40},
                "9" * 30,
            )
        )
    if isinstance(value, dict):
        items = [(k, damage_json(v, random, depth + 1)) for k, v in value.items() if random.random() > 0.0003]
        return dict(items)
    if isinstance(value, list):
        kept = [damage_json(v, random, depth + 1) for v in value if random.random() > 0.0006]
        if kept and random.random() < 0.002:
            kept.append(random.choice(kept))
        if kept and random.random() < 0.001:
            random.shuffle(kept)
        return kept
    return value
