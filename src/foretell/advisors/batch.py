"""Advisors: batch: the batch size at which the occupancy of a GPU saturates, beside latency and throughput.

A larger batch gives every kernel more blocks, so that SMs are fuller, until another bottleneck holds them back: from
there on a batch costs latency and memory and brings little. Found by prediction, without running anything (DNN-occu,
Mei et al., "GPU Occupancy Prediction of Deep Learning Models Using Graph Neural Network", section VI-A).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foretell.records import Prediction

_NEARLY = 0.9  # of the highest occupancy of all batch sizes


@dataclass(frozen=True, slots=True)
class Saturation:
    """The smallest batch size that reaches nine tenths of the highest occupancy among those tried.

    ``throughput_share`` is its throughput over the highest one. ``still_rises`` is true if it is the largest batch
    tried: a larger one may well have more.
    """

    device: str
    dtype: str
    batch_size: int
    occupancy_pct: float
    most_pct: float
    latency_ms: float
    throughput_share: float
    still_rises: bool

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        where = f"On {self.device} at {self.dtype} occupancy"
        if self.still_rises:
            return f"{where} still rises at batch {self.batch_size}, the largest tried: {self.occupancy_pct:.3g} %."
        return (
            f"{where} saturates at batch {self.batch_size}: {self.occupancy_pct:.3g} %, and {self.most_pct:.3g} % "
            f"at most; a batch takes {self.latency_ms:.3g} ms, with {self.throughput_share:.0%} of the best throughput."
        )


def saturations(predictions: Iterable[Prediction]) -> list[Saturation]:
    """For each device and dtype the batch size at which occupancy saturates; only where it is known for several."""
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for prediction in predictions:
        if prediction.occupancy is not None and prediction.latency_ms is not None and prediction.slice is None:
            groups.setdefault((prediction.device, prediction.dtype), []).append(prediction)
    return [_saturation(group) for group in groups.values() if len({one.batch_size for one in group}) > 1]


def _saturation(group: Sequence[Prediction]) -> Saturation:
    by_size = sorted(group, key=lambda one: one.batch_size)
    occupancies = [one.occupancy.value for one in by_size if one.occupancy is not None]
    rates = [one.batch_size / one.latency_ms.value for one in by_size if one.latency_ms is not None]
    most = max(occupancies)
    place = next(place for place, value in enumerate(occupancies) if value >= _NEARLY * most)
    chosen = by_size[place]
    return Saturation(
        chosen.device, chosen.dtype, chosen.batch_size, occupancies[place], most, chosen.batch_size / rates[place],
        rates[place] / max(rates), place == len(by_size) - 1,
    )  # fmt: skip
