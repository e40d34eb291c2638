"""The loops of known work: sources that the jiterator can take, and their work. Only a GPU runs them."""

import pytest

from foretell.profiling.jit_kernels import (
    L1_SET_BYTES,
    half_flops,
    half_loop,
    half_source,
    load_bytes,
    load_loop,
    load_source,
)


@pytest.mark.parametrize(("source", "name"), [(half_source(), "plain_half"), (load_source(), "cached_loads")])
def test_the_jiterator_finds_the_function(source: str, name: str) -> None:
    pytest.importorskip("torch")
    from torch.cuda.jiterator import _CodeParser

    parsed = _CodeParser(source)
    assert (parsed.function_name, parsed.template_params) == (name, "<typename T>")


def test_the_loads_of_a_pass_cover_the_buffer_once() -> None:
    offsets = [int(part.split("]")[0]) for part in load_source().split("%4+")[1:]]
    threads = 128 * 16  # bytes of the threads that read beside each other
    assert offsets == list(range(0, L1_SET_BYTES, threads))


def test_work_grows_with_the_device() -> None:
    assert half_source().count("fma.rn.f16x2") == 128
    assert half_flops(2) == 2 * 32768 * 128 * 256 * 4
    assert load_bytes(132) == 132 * 32768 * 8 * 16 * 256


@pytest.mark.gpu
def test_both_run_on_a_gpu() -> None:
    import torch

    for loop in (half_loop(torch, 1), load_loop(torch, 1)):
        loop.run()
        torch.cuda.synchronize()
        assert loop.work > 0
