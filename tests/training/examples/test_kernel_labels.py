"""Of a traced unit the class of its main kernel: the one that takes longest by name, all its launches together."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.features import COLUMNS
from foretell.training.examples import kernel_labels
from foretell.training.examples.kernel_labels import read_labels
from foretell.training.fusion import fold_of
from small.small_store import WIDTHS, write_store, write_table

pytest.importorskip("pyarrow")

SPLIT, FILL, STRIDED = "splitKreduce_kernel", "Memset (Device)", "at::native::elementwise_kernel<128>"
NAMES = [{"name_id": number, "name": name} for number, name in enumerate((SPLIT, FILL, STRIDED), 1)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Every first call of a workload runs two short fills and a longer reduction; all others an elementwise kernel."""
    folder = write_store(tmp_path, WIDTHS[:3])
    kernels = []
    for width in WIDTHS[:3]:
        for place in range(4):
            for name_id, duration_us in [(2, 3.0), (2, 3.0), (1, 5.0)] if place == 0 else [(3, 1.0)]:
                kernels.append(
                    {"campaign_id": "c", "workload_id": f"{width}-1-fp32-inference", "sequence": len(kernels)}
                    | {"op_index": place, "op": "aten::x", "module": "", "duration_us": duration_us, "name_id": name_id}
                )
    write_table(folder / "one", "kernels", kernels)
    write_table(folder / "one", "kernel_names", NAMES)
    return folder


def test_the_main_kernel_takes_longest_by_name(store: Path) -> None:
    labels = read_labels(store, "h200", store / "cache")
    assert labels.classes == ("cuda fill", "pytorch pointwise-strided")
    assert labels.features.shape == (len(labels), len(COLUMNS))
    fills = labels.label == 0
    assert fills.sum() == 3
    assert labels.time_us[fills].tolist() == [11.0] * 3
    assert labels.counts.sum() == 12
    assert not labels.training.any()
    assert set(labels.fold.tolist()) == {fold_of(f"synthetic:tiny?width={width}") for width in WIDTHS[:3]}


def test_labels_are_extracted_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_labels(store, "h200", store / "cache")
    monkeypatch.setattr(kernel_labels, "_extract", lambda *_: pytest.fail("extracted again"))
    again = read_labels(store, "NVIDIA H200", store / "cache")
    assert again.classes == first.classes
    assert np.array_equal(again.features, first.features)
    assert np.array_equal(again.layouts, first.layouts)


def test_traces_of_another_device_teach_nothing(store: Path) -> None:
    with pytest.raises(DataError, match="no traced workload of l4"):
        read_labels(store, "l4", store / "cache")


def test_kernels_need_names(store: Path) -> None:
    (store / "one" / "kernel_names.parquet").unlink()
    with pytest.raises(DataError, match="kernels without a name"):
        read_labels(store, "h200", store / "cache")
