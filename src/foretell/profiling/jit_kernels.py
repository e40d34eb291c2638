"""Profiling: two loops of which the work is known: multiply-adds in fp16 without tensor cores, and loads that hit L1.

No operator of PyTorch does only one of them. They are compiled on the spot by PyTorch's own jiterator, which needs
neither a CUDA toolkit nor a C compiler, as ``torch.cuda._compile_kernel`` (the toolkit's headers) and Triton (a C
compiler) do. The instructions are written out as PTX, so that no compiler replaces or drops them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from foretell.units import KIB

L1_SET_BYTES = 16 * KIB  # of each SM; no GPU with an L1 for loads has a smaller one
_CHAINS, _ROUNDS, _PASSES = 8, 16, 256
_FLOPS = 4  # of an instruction and thread: two numbers, a product and a sum of each
_LOADS, _LOAD_BYTES = 8, 16
_THREADS = 128  # so many neighbours read different 16 bytes; others read what these do
_PER_SM = 32768  # elements: many more than an SM holds at a time, so that the last ones do not count
_MINUS_ONES = -1140802560  # 0xbc00bc00, twice -1 in fp16
_ONES, _MANTISSAS = 0x3C003C00, 0x03FF03FF


class Loop(NamedTuple):
    """``run`` starts the loop once; ``work`` is its FLOP or its bytes."""

    run: Callable[[], object]
    work: float


def half_flops(sms: int) -> float:
    """The FLOP of one run of the loop of multiply-adds."""
    return float(sms * _PER_SM * _CHAINS * _ROUNDS * _PASSES * _FLOPS)


def load_bytes(sms: int) -> float:
    """The bytes of one run of the loop of loads."""
    return float(sms * _PER_SM * _LOADS * _LOAD_BYTES * _PASSES)


def half_source() -> str:
    """Chains of a ← a · y + x in pairs of fp16 numbers."""
    chains = range(_CHAINS)
    begin = " ".join(f"unsigned a{chain} = x + {chain};" for chain in chains)
    step = "\n".join(
        f'asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a{chain}) : "r"(b), "r"(c));' for chain in chains
    )
    end = " ^ ".join(f"a{chain}" for chain in chains)
    # without > in its body: the jiterator looks for the last one as the end of the template's arguments
    return (
        "template <typename T> T plain_half(T x, T y) {\n"
        f"unsigned b = y; unsigned c = x; {begin}\n"
        f"for (int pass = 0; pass != {_PASSES}; ++pass) {{\n" + "\n".join([step] * _ROUNDS) + "\n}\n"
        f"return (T)({end});\n}}"
    )


def load_source() -> str:
    """Loads of 16 bytes from a buffer whose words cancel out: the next address depends on them, and is the same."""
    numbers = range(_LOADS)
    declared = " ".join(f"unsigned w{number}0, w{number}1, w{number}2, w{number}3;" for number in numbers)
    stride = L1_SET_BYTES // _LOADS
    loads = "\n".join(
        f'asm volatile("ld.global.ca.v4.u32 {{%0, %1, %2, %3}}, [%4+{number * stride}];" : "=r"(w{number}0), '
        f'"=r"(w{number}1), "=r"(w{number}2), "=r"(w{number}3) : "l"(at));'
        for number in numbers
    )
    total = " ^ ".join(f"w{number}{word}" for number in numbers for word in range(4))
    return (
        "template <typename T> T cached_loads(T x) {\n"
        f"unsigned long long at = x + (threadIdx.x & {_THREADS - 1}) * {_LOAD_BYTES}; {declared}\n"
        f"for (int pass = 0; pass != {_PASSES}; ++pass) {{\n{loads}\nat += {total};\n}}\n"
        "return (T)at;\n}"
    )


def half_loop(torch: Any, sms: int) -> Loop:
    """Multiply-adds of pairs of fp16 numbers on the CUDA cores; they alternate between two values, so bits change."""
    x = _ONES + (torch.randint(0, 2**31 - 1, (sms * _PER_SM,), dtype=torch.int32, device="cuda") & _MANTISSAS)
    y = torch.full_like(x, _MINUS_ONES)
    kernel = torch.cuda.jiterator._create_jit_fn(half_source())
    return Loop(lambda: kernel(x, y), half_flops(sms))


def load_loop(torch: Any, sms: int) -> Loop:
    """Loads of one small buffer, again and again, by all SMs: each has it in its L1 after the first pass."""
    words = torch.randint(0, 2**31 - 1, (L1_SET_BYTES // 8,), dtype=torch.int32, device="cuda")
    buffer = torch.cat([words, words])  # the second half cancels the first
    x = torch.full((sms * _PER_SM,), buffer.data_ptr(), dtype=torch.int64, device="cuda")
    kernel = torch.cuda.jiterator._create_jit_fn(load_source())

    def run(_alive: Any = buffer) -> object:  # the loop reads the buffer by its address: it has to live
        return kernel(x)

    return Loop(run, load_bytes(sms))
