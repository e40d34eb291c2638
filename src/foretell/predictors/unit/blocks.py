"""Predictors: the residual blocks of many networks at once, compiled where that pays.

Most of the time of a fit on a GPU goes into moving activations: a norm, an activation, dropout and a sum each read and
write them all. A compiler joins what lies between two products, which halves the traffic. Compiled blocks are used
only if they agree with plain ones, forward and backward; where no compiler works, plain ones take their place.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from foretell.optional import require

Log = Callable[[str], None]
# state, weights of the blocks, the type of the products, dropout → the state after the blocks
Blocks = Callable[[Any, list[tuple[Any, ...]], Any, float], Any]
PARTS = ("scale", "up", "up_bias", "down", "down_bias")
_MOST_OFF = 0.02  # of compiled blocks: products in 16 bits, summed in another order


def weights_of(arrays: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The weights of each block in turn."""
    count = sum(name.startswith("up_bias") for name in arrays)
    return [tuple(arrays[f"{part}{block}"] for part in PARTS) for block in range(count)]


def plain_blocks(state: Any, weights: list[tuple[Any, ...]], low: Any, dropout: float) -> Any:
    """Pre-normalised blocks of two layers; the first axis of everything is the network."""
    functional = require("torch", extra="train", purpose="Fitting a network").nn.functional
    for scale, up, up_bias, down, down_bias in weights:
        normed = functional.rms_norm(state, state.shape[-1:], eps=1e-6)
        # the scale of the norm is multiplied into the matrix: one pass over the activations less
        inner = up_bias.to(low).baddbmm(normed.to(low), (scale.mT * up).to(low))
        inner = functional.dropout(functional.silu(inner), dropout, training=dropout > 0)
        state = state + down_bias.to(low).baddbmm(inner, down.to(low))
    return state


@cache
def blocks_for(device: str, log: Log = lambda _: None) -> Blocks:
    """Compiled blocks on a GPU, if they agree with plain ones."""
    if device != "cuda":
        return plain_blocks
    compiled = compiled_blocks()
    try:
        off = disagreement(compiled, device)
    except Exception as error:  # noqa: BLE001 - whatever a compiler fails with, the plain blocks are right
        log(f"blocks are not compiled: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        return plain_blocks
    log(f"blocks are compiled; they differ from plain ones by {off:.1e}")
    return compiled if off < _MOST_OFF else plain_blocks


def compiled_blocks() -> Blocks:
    """The same, compiled once for any number of rows."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    compiled = torch.compile(plain_blocks, dynamic=False)  # but for the rows, which differ from batch to batch

    def run(state: Any, weights: list[tuple[Any, ...]], low: Any, dropout: float) -> Any:
        torch._dynamo.mark_dynamic(state, 1)
        return compiled(state, weights, low, dropout)

    return run


def disagreement(blocks: Blocks, device: str) -> float:
    """How far some blocks are from plain ones, for two numbers of rows: the larger of state and gradients."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Any:
        return (torch.randn(*shape, generator=random) * shape[-2] ** -0.5).to(device).requires_grad_()

    width, low = 64, torch.bfloat16 if device == "cuda" else torch.float32
    weights = [
        (draw(2, 1, width), draw(2, width, width), draw(2, 1, width), draw(2, width, width), draw(2, 1, width))
        for _ in range(2)
    ]
    furthest = 0.0
    for rows in (96, 131):
        entered = draw(2, rows, width)
        results = []
        for one in (plain_blocks, blocks):
            # as in a fit, the state is no leaf
            state = one(entered * 30.0, weights, low, 0.0)
            gradients = torch.autograd.grad(
                state.square().mean(), [entered, *(part for own in weights for part in own)]
            )
            results.append([state.detach(), *gradients])
        for plain, other in zip(*results, strict=True):
            furthest = max(furthest, float((other - plain).norm() / plain.norm().clamp_min(1e-12)))
    return furthest
