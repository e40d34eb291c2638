"""Advisors: batch: the largest batch size that fits, and the one at which the occupancy of a GPU saturates.

A larger batch gives every kernel more blocks, so that SMs are fuller, until another bottleneck holds them back: from
there on a batch costs latency and memory and brings little. Found by prediction, without running anything (DNN-occu,
Mei et al., "GPU Occupancy Prediction of Deep Learning Models Using Graph Neural Network", section VI-A).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretell.records import Prediction

_MOST_GUESSES = 6
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


def largest_batch(
    need_mib: Callable[[int], float], guess_mib: Callable[[int], float], capacity_mib: float, most: int
) -> int:
    """The largest batch size whose need fits into a memory; 0 if not even one item does, ``most`` at most.

    ``need_mib`` is what decides, and slow; ``guess_mib`` is cheap and nearly proportional to it. So the guess is
    searched by bisection, its proportion to the need is taken anew where that search ends, and so on until the answer
    stays. Both are taken to grow with the batch.

    >>> asked = []
    >>> def need(batch):
    ...     asked.append(batch)
    ...     return 100 + 1.7 * batch
    >>> largest_batch(need, lambda batch: 80 + 1.5 * batch, 1000, 2**20), len(set(asked)) < 8
    (529, True)
    """
    needs: dict[int, float] = {}

    def need(batch: int) -> float:
        if batch not in needs:
            needs[batch] = need_mib(batch)
        return needs[batch]

    if need(1) > capacity_mib:
        return 0
    fitting, failing, batch, guesses = 1, most + 1, 1, 0
    while failing - fitting > 1:
        allowed = capacity_mib * max(guess_mib(batch), 1e-9) / need(batch)
        batch = _last(guess_mib, allowed, fitting, failing)
        guesses += 1
        if batch == fitting:  # the guess points at what is known already: perhaps the next one does not fit
            batch = fitting + 1
        if guesses > _MOST_GUESSES:  # it is not proportional at all: halve what is left
            batch = (fitting + failing) // 2
        if need(batch) <= capacity_mib:
            fitting = batch
        else:
            failing = batch
    return fitting


def _last(rising: Callable[[int], float], limit: float, low: int, high: int) -> int:
    """The last number from ``low``, below ``high``, at which something that rises is not above a limit."""
    while high - low > 1:
        middle = (low + high) // 2
        if rising(middle) <= limit:
            low = middle
        else:
            high = middle
    return low
