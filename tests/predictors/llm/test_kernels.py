"""Times of kernels: whose they are in which precision, and where torch's own stand in."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.llm.kernels import SMALL, SMALL_BYTES, TORCH, Kernels, own_name, shipped_kernels
from foretell.predictors.trees import Trees

KERNELS, H200 = shipped_kernels(), find_device("h200")
TOKENS = np.array([1.0, 16.0, 256.0, 4096.0])


def products(scheme: str, framework: str | None, device: str = "h200") -> np.ndarray:
    rows = len(TOKENS)
    work = {"m": TOKENS, "n": np.full(rows, 6144), "k": np.full(rows, 4096), "scheme": [scheme] * rows}
    return KERNELS.times_us("product", work, find_device(device), framework)


def test_paged_multiplies_fp8_without_the_quantising_that_tables_of_engines_contain() -> None:
    assert (products("fp8", None) <= products("fp8", TORCH) + 1e-9).all()
    assert (products("fp8", "vllm")[:2] > 1.15 * products("fp8", None)[:2]).all()
    assert products("fp8", "trtllm") == pytest.approx(products("fp8", TORCH))


@pytest.mark.parametrize("framework", [None, "vllm"])
def test_int4_takes_the_fastest_kernel_that_was_measured(framework: str | None) -> None:
    own, engines, taken = (products("int4_weights", name) for name in (TORCH, "trtllm", framework))
    assert taken == pytest.approx(np.minimum(own, engines))
    assert own[0] < engines[0]  # one token: torch's kernel is bound by memory
    assert own[-1] > 5 * engines[-1]  # many: it is naive


def test_torch_was_measured_on_hopper_alone() -> None:
    alone = Kernels(KERNELS.trees, KERNELS.frameworks, KERNELS.devices)
    rows = len(TOKENS)
    work = {"m": TOKENS, "n": np.full(rows, 6144), "k": np.full(rows, 4096), "scheme": ["int4_weights"] * rows}
    a100 = find_device("a100-sxm-80gb")
    assert KERNELS.times_us("product", work, a100, None) == pytest.approx(alone.times_us("product", work, a100, None))


def test_a_part_that_writes_fp8_is_no_slower() -> None:
    tokens = np.array([4096.0, 8192.0])
    for name in ("norm", "gate"):
        sizes = {"width": np.full(2, 8192), "bytes_per_token": np.full(2, 8192 * SMALL_BYTES[name])}
        wide, narrow = (
            KERNELS.times_us(
                "small",
                {"tokens": tokens, **sizes, "part": np.full(2, SMALL[name]), "written_bytes": np.full(2, written)},
                H200,
                TORCH,
            )
            for written in (2, 1)
        )
        assert (narrow < 1.02 * wide).all()


def test_trees_of_torch_are_named_by_kind_scheme_and_pages() -> None:
    assert own_name("product", "fp8") == "product/fp8"
    assert own_name("generation", is_paged=True) == "paged"
    assert own_name("experts") == "experts"


def test_equal_work_is_looked_up_once_and_what_is_handed_out_may_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = replace(KERNELS)  # with nothing looked up yet
    work = {"m": np.array([1.0, 64.0]), "n": np.full(2, 4096.0), "k": np.full(2, 4096.0), "scheme": ["bf16"] * 2}
    first = kernels.times_us("product", work, H200, "vllm")
    kept = first.copy()
    first += 1.0
    other = kernels.times_us("product", {**work, "m": np.array([1.0, 65.0])}, H200, "vllm")
    monkeypatch.setattr(Trees, "predict", lambda *_: pytest.fail("asked again"))
    assert kernels.times_us("product", work, H200, "vllm").tolist() == kept.tolist()
    assert other.tolist() != kept.tolist()
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        kernels.times_us("product", work, find_device("h100-sxm"), "vllm")
