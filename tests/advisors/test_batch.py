"""Where occupancy saturates: the smallest batch that is nearly as full as the fullest."""

from dataclasses import replace

import pytest

from foretell.advisors.batch import largest_batch, saturations
from foretell.records import Estimate, Prediction
from foretell.testing import tiny_onnx
from foretell.workflows.predict import predict


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(tiny_onnx(), batch_size=1, dtype="fp16")


def of(prediction: Prediction, batch: int, occupancy: float | None, latency_ms: float, **others: str) -> Prediction:
    known = None if occupancy is None else Estimate(occupancy, occupancy, occupancy)
    latency = Estimate(latency_ms, latency_ms, latency_ms)
    return replace(prediction, batch_size=batch, occupancy=known, latency_ms=latency, **others)


def test_the_smallest_batch_that_is_nearly_full(prediction: Prediction) -> None:
    sizes = [(64, 50.0, 8.0), (1, 10.0, 1.0), (8, 40.0, 2.0), (16, 46.0, 3.0), (32, 51.0, 5.0)]
    (found,) = saturations(of(prediction, *size) for size in sizes)
    assert (found.batch_size, found.occupancy_pct, found.most_pct, found.latency_ms) == (16, 46.0, 51.0, 3.0)
    assert found.throughput_share == pytest.approx((16 / 3) / (64 / 8))
    assert not found.still_rises
    assert found.sentence == (
        "On h200 at fp16 occupancy saturates at batch 16: 46 %, and 51 % at most; "
        "a batch takes 3 ms, with 67% of the best throughput."
    )


def test_what_still_rises_does_not_saturate(prediction: Prediction) -> None:
    (found,) = saturations([of(prediction, 1, 10.0, 1.0), of(prediction, 8, 40.0, 2.0)])
    assert found.still_rises
    assert "still rises at batch 8, the largest tried: 40 %." in found.sentence


def test_each_device_and_dtype_by_itself_and_nothing_without_occupancy(prediction: Prediction) -> None:
    points = [
        of(prediction, batch, 10.0 * batch, 1.0, dtype=dtype, device=device)
        for device in ("h200", "other")
        for dtype in ("fp16", "fp32")
        for batch in (1, 2)
    ]
    assert {(found.device, found.dtype) for found in saturations(points)} == {
        ("h200", "fp16"), ("h200", "fp32"), ("other", "fp16"), ("other", "fp32"),
    }  # fmt: skip
    assert not saturations([of(prediction, 1, None, 1.0), of(prediction, 2, None, 1.0)])
    assert not saturations([of(prediction, 1, 10.0, 1.0)])
    assert not saturations(of(prediction, batch, 10.0, 1.0, slice="mps:30") for batch in (1, 2))


@pytest.mark.parametrize("capacity", [99, 101, 150, 12345, 10**9])
@pytest.mark.parametrize("jump", [0, 40])
def test_the_largest_batch_is_exact_wherever_the_guess_points(capacity: int, jump: int) -> None:
    """The need has a jump that the guess knows nothing of, as the workspace of another algorithm has."""

    def need(batch: int) -> float:
        return 100 + 0.9 * batch + (jump if batch > 30 else 0)

    found = largest_batch(need, lambda batch: 10 + 2.0 * batch, capacity, 2**20)
    expected = max(size for size in (0, *range(1, 20_000), 2**20) if not size or need(size) <= capacity)
    assert found == expected
