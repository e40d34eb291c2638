"""A few hostile archives of each kind reach nothing; benchmarks/hostile.py reads all of them."""

import warnings
from pathlib import Path

import pytest

from attacks.archives import Hostile, make_all
from attacks.watching import Watch
from foretell.errors import ForetellError
from foretell.frontends.caged import read_caged
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch import torchscript
from foretell.workflows.workload import load_graph

pytest.importorskip("torch")
# a cage knows nothing of how an archive hides its code, only of what the code does
PLAIN = ("plain-read", "plain-write-shared")
RUN_BY_PYTORCH = ("case-CODE-PY", "pair-same-save-evil-first", *PLAIN)


def pick(archives: list[Hostile], *names: str) -> list[Hostile]:
    found = {archive.name.removeprefix(f"{archive.kind}-"): archive for archive in archives}
    return [found[name] for name in names]


def test_there_are_many_and_none_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reaches the bait is refused before PyTorch sees it; what is left is harmless."""
    monkeypatch.setattr(torchscript, "read_caged", lambda _, request: pytest.fail(f"{request.source} was loaded"))
    with Watch(tmp_path / "bait") as watch:
        archives = make_all(tmp_path / "archives", watch.bait)
        assert len(archives) >= 200
        assert len({archive.path for archive in archives}) == len(archives)
        watch.seen()
        for archive in archives:
            with pytest.raises(ForetellError):
                load_graph(archive.path, input_shape=None if archive.path.suffix == ".pt2" else "3", use_cache=False)
        assert not watch.seen()
        assert watch.intact()


def test_the_cage_holds_where_the_check_does_not(tmp_path: Path) -> None:
    with Watch(tmp_path / "bait") as watch:
        archives = make_all(tmp_path / "archives", watch.bait, with_bombs=False)
        watch.seen()
        for archive in pick(archives, *PLAIN):
            with pytest.raises(ForetellError):
                read_caged("foretell.frontends.torch.torchscript:load_script", ModelRequest(str(archive.path)))
            assert not watch.seen(), archive.name
        assert watch.intact()


def test_the_attacks_are_real(tmp_path: Path) -> None:
    """Without a cage PyTorch writes and reads; otherwise the test above would show nothing."""
    import torch

    with Watch(tmp_path / "bait") as watch:
        archives = make_all(tmp_path / "archives", watch.bait, with_bombs=False)
        for archive in pick(archives, *RUN_BY_PYTORCH):
            watch.seen()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.jit.load(str(archive.path))
            assert watch.seen(), archive.name
        assert not watch.intact()
