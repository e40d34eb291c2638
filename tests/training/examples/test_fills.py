"""What the kernels of traced units hold of a device."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import DeviceError
from foretell.predictors.occupancy.launches import Launches
from foretell.training.examples.fills import held_by

H200 = find_device("h200")


def launches(blocks: list[float]) -> Launches:
    """Blocks of 64 warps: one has a place on each of 132 SMs."""
    count = len(blocks)
    numbers = (np.full(count, value) for value in (32.0, 32.0, 0.0, 10.0))
    return Launches(np.array(blocks), *numbers, np.zeros(count, np.intp))


def test_a_last_wave_leaves_room() -> None:
    # two blocks of 32 warps have a place on an SM: a wave has 264
    fill, spread = held_by(launches([132.0, 264.0, 396.0, 528.0]), H200)
    assert fill == pytest.approx([0.5, 1.0, 0.5 * (1.0 + 0.75), 1.0])
    assert spread == pytest.approx([1.0, 1.0, 1.0, 1.0])


def test_a_device_without_sms_is_refused() -> None:
    with pytest.raises(DeviceError, match="has no SMs"):
        held_by(launches([1.0]), find_device("cpu"))
