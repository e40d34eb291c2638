"""Blocks of many networks: each network is computed alone, and compiled blocks serve only if they agree."""

from collections.abc import Iterator
from typing import Any

import pytest

from foretell.predictors.unit import blocks

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    blocks.blocks_for.cache_clear()
    yield
    blocks.blocks_for.cache_clear()


def _weights(networks: int, width: int) -> list[tuple[Any, ...]]:
    shapes = ((1, width), (width, width), (1, width), (width, width), (1, width))
    return [tuple(torch.randn(networks, *shape) for shape in shapes) for _ in range(2)]


def test_networks_side_by_side_are_what_each_is_alone() -> None:
    state, weights = torch.randn(3, 7, 8), _weights(3, 8)
    together = blocks.plain_blocks(state, weights, torch.float32, 0.0)
    for one in range(3):
        own = [tuple(part[one : one + 1] for part in block) for block in weights]
        torch.testing.assert_close(
            blocks.plain_blocks(state[one : one + 1], own, torch.float32, 0.0)[0], together[one], rtol=1e-5, atol=1e-5
        )
    assert not torch.equal(blocks.plain_blocks(state, weights, torch.float32, 0.5), together)


def test_names_of_blocks_are_found_in_order() -> None:
    arrays = {f"{part}{block}": f"{part}{block}" for block in range(2) for part in blocks.PARTS} | {"leave": "leave"}
    assert blocks.weights_of(arrays) == [tuple(f"{part}{block}" for part in blocks.PARTS) for block in range(2)]


def test_plain_blocks_agree_with_themselves_and_wrong_ones_do_not() -> None:
    assert blocks.disagreement(blocks.plain_blocks, "cpu") == 0.0

    def wrong(state: Any, weights: Any, low: Any, dropout: float) -> Any:
        return blocks.plain_blocks(state, weights, low, dropout) * 1.1

    assert blocks.disagreement(wrong, "cpu") > 0.05


def test_a_compiler_that_fails_or_errs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def failing() -> Any:
        raise_at_once: Any = lambda *_: 1 / 0  # noqa: E731
        return raise_at_once

    assert blocks.blocks_for("cpu") is blocks.plain_blocks
    monkeypatch.setattr(blocks, "disagreement", lambda other, _device: other(None, [], None, 0.0))
    monkeypatch.setattr(blocks, "compiled_blocks", failing)
    assert blocks.blocks_for("cuda", said.append) is blocks.plain_blocks
    assert "not compiled" in said[0]
    blocks.blocks_for.cache_clear()
    monkeypatch.setattr(blocks, "compiled_blocks", lambda: failing)
    monkeypatch.setattr(blocks, "disagreement", lambda *_: 0.5)
    assert blocks.blocks_for("cuda", said.append) is blocks.plain_blocks
    blocks.blocks_for.cache_clear()
    monkeypatch.setattr(blocks, "disagreement", lambda *_: 1e-3)
    assert blocks.blocks_for("cuda", said.append) is failing
