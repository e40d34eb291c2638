"""Tests of what each GPU holds, and of divisions that a model's sizes do not allow."""

from dataclasses import replace

import pytest

from foretell.devices import find_device
from foretell.errors import DeviceError, InputError
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.placement import choose_precision, divide, smallest
from foretell.units import GIB

LLAMA_8B = load_architecture("meta-llama/Llama-3.1-8B")
LLAMA_70B = load_architecture("meta-llama/Llama-3.1-70B")
DEEPSEEK = load_architecture("deepseek-ai/DeepSeek-V3")
H100, H200, A100 = find_device("h100-sxm"), find_device("h200"), find_device("a100-sxm-80gb")


def test_weights_are_those_of_the_parameters_and_their_precision() -> None:
    assert Deployment(LLAMA_8B, H200).weights_bytes == pytest.approx(2 * LLAMA_8B.parameters, rel=1e-6)
    fp8 = Deployment(LLAMA_8B, H200, weights="fp8")
    in_layers = LLAMA_8B.parameters - LLAMA_8B.embeddings
    assert fp8.weights_bytes == pytest.approx(in_layers + 2 * LLAMA_8B.embeddings, rel=1e-6)


def test_tensor_parallelism_divides_weights_and_cache() -> None:
    one, four = Deployment(LLAMA_70B, H200), Deployment(LLAMA_70B, H200, tensor=4)
    assert four.weights_bytes_per_gpu == pytest.approx(one.weights_bytes_per_gpu / 4)
    assert four.cache_bytes_per_gpu(1000) == pytest.approx(one.cache_bytes_per_gpu(1000) / 4)
    # more GPUs than heads of keys and values hold copies; a latent is on every GPU
    assert replace(one, tensor=16).cache_bytes_per_gpu(1000) == pytest.approx(one.cache_bytes_per_gpu(1000) / 8)
    latent = Deployment(DEEPSEEK, H200, weights="fp8_block")
    assert replace(latent, tensor=8).cache_bytes_per_gpu(100) == latent.cache_bytes_per_gpu(100)


def test_stages_divide_layers_and_experts_are_spread() -> None:
    one = Deployment(LLAMA_70B, H200)
    assert replace(one, pipeline=4).cache_bytes_per_gpu(100) == pytest.approx(one.cache_bytes_per_gpu(100) / 4)
    spread = Deployment(DEEPSEEK, H200, weights="fp8_block", tensor=1, data=8, expert=8)
    together = Deployment(DEEPSEEK, H200, weights="fp8_block", tensor=8)
    # replicas of the attention share one set of experts, so they hold a little more than a division by tensors
    assert together.weights_bytes_per_gpu < spread.weights_bytes_per_gpu < 1.35 * together.weights_bytes_per_gpu


def test_a_window_bounds_the_cache() -> None:
    mistral = Deployment(load_architecture("mistralai/Mistral-7B-v0.1"), H200)
    assert mistral.cache_bytes_per_gpu(20000) == mistral.cache_bytes_per_gpu(4096)
    assert mistral.cache_bytes_per_gpu(2048) == pytest.approx(mistral.cache_bytes_per_gpu(4096) / 2)


def test_what_is_said_to_fit_fits() -> None:
    place = Deployment(LLAMA_8B, H100)
    most = place.max_concurrency(4096)
    assert most > 10
    assert most * place.cache_bytes_per_gpu(4096) <= place.pool_bytes(most)
    assert (most + 1) * place.cache_bytes_per_gpu(4096) > place.pool_bytes(most + 1)
    assert place.pool_bytes(most) < 0.9 * H100.memory_gib * GIB


def test_the_least_gpus() -> None:
    assert smallest(Deployment(LLAMA_8B, H100), 2048, 0.9).gpus == 1  # type: ignore[union-attr]
    assert smallest(Deployment(LLAMA_70B, H100), 2048, 0.9).gpus == 2  # type: ignore[union-attr]
    assert smallest(Deployment(LLAMA_70B, H100), 2048, 0.9, clients=64).gpus == 4  # type: ignore[union-attr]
    assert smallest(Deployment(LLAMA_70B, H100, weights="int4_weights"), 2048, 0.9).gpus == 1  # type: ignore[union-attr]
    assert smallest(Deployment(DEEPSEEK, H100, weights="fp8_block"), 2048, 0.9) is None
    across = smallest(Deployment(DEEPSEEK, H100, weights="fp8_block", network="infiniband-ndr"), 2048, 0.9)
    assert across is None or across.gpus == 16


@pytest.mark.parametrize(
    ("gpus", "sizes", "word"),
    [
        (None, (3, None, None, None), "1, 2, 4, 8"),
        (None, (1, 7, None, None), "32 layers"),
        (None, (1, None, None, 2), "no experts"),
        (4, (8, None, None, None), "leave --gpus out"),
        (16, (None, None, None, None), "network"),
        (0, (None, None, None, None), "at least 1"),
    ],
)
def test_a_division_that_cannot_be_is_one_line(gpus: int | None, sizes: tuple[int | None, ...], word: str) -> None:
    with pytest.raises(InputError, match=word) as raised:
        divide(Deployment(LLAMA_8B, H100), 2048, 1, 0.9, gpus, sizes)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_heads_of_keys_and_values_are_named_where_they_forbid_a_division() -> None:
    phi = Deployment(load_architecture("microsoft/phi-4"), H100)  # 40 heads, 10 of keys and values
    with pytest.raises(InputError, match=r"the 10 of keys and values of .*; 1, 2, 5, 10, 20, 40 do"):
        replace(phi, tensor=4).check()
    for size in (1, 2, 5, 10, 20, 40):
        replace(phi, tensor=size)._check_heads(phi.architecture.groups[0].attention)


def test_all_gpus_are_used_by_tensors_then_by_replicas_or_stages() -> None:
    none = (None, None, None, None)
    eight = divide(Deployment(LLAMA_8B, H100), 2048, 1, 0.9, 8, none)
    assert (eight.tensor, eight.data) == (8, 1)
    phi = load_architecture("microsoft/phi-4")  # 40 heads, 10 of keys and values
    place = divide(Deployment(phi, H100), 2048, 1, 0.9, 4, none)
    assert place.gpus == 4
    assert place.tensor == 2


def test_precisions_that_a_device_lacks_are_refused() -> None:
    with pytest.raises(DeviceError, match="no fp8 units"):
        choose_precision(LLAMA_8B, A100, weights="fp8")
    with pytest.raises(DeviceError, match="no fp4 units"):
        choose_precision(LLAMA_8B, H200, weights="fp4")
    with pytest.raises(DeviceError, match="no fp8 units"):  # as its checkpoint is stored
        choose_precision(DEEPSEEK, A100)
    with pytest.raises(DeviceError):
        choose_precision(LLAMA_8B, find_device("v100-sxm2-16gb"))
    with pytest.raises(InputError, match="Engines serve"):
        choose_precision(LLAMA_8B, H200, dtype="fp32")
    assert choose_precision(LLAMA_8B, A100, weights="int4").notes == ()
    assert "extrapolated" in choose_precision(LLAMA_8B, H200, weights="int4").notes[0]
    assert choose_precision(DEEPSEEK, H200, weights="fp8").weights == "fp8_block"
