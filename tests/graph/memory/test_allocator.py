"""The caching allocator, request by request; sizes in MiB unless said otherwise."""

import pytest

from foretell.graph.memory.allocator import BLOCK_BYTES, CachingAllocator, Tape
from foretell.units import MIB


@pytest.mark.parametrize(
    ("asked_bytes", "allocated_bytes", "reserved_bytes"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # one of many in a large segment
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # more than 1 MiB is left: a block of its own
        (11 * MIB, 12 * MIB, 12 * MIB),  # exactly 1 MiB is left: not worth a block
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (19 * MIB + 512, 20 * MIB, 20 * MIB),
    ],
)
def test_what_a_request_is_handed(asked_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.take(asked_bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated_bytes, reserved_bytes)


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.take(40 * MIB), allocator.take(14 * MIB)
    allocator.give(large)
    allocator.give(small)
    assert allocator.take(12 * MIB).size == 12 * MIB  # from the 14
    assert allocator.take(13 * MIB).size == 13 * MIB  # from the 40
    assert allocator.take(26 * MIB + 512).size == 27 * MIB  # what is left of it, whole
    assert allocator.reserved_bytes == 54 * MIB


def test_freed_neighbours_merge_whatever_the_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        blocks = [allocator.take(6 * MIB) for _ in range(3)]
        for position in order:
            allocator.give(blocks[position])
        assert allocator.allocated_bytes == 0
        assert allocator.take(19 * MIB + 512).size == 20 * MIB  # the whole segment again
        assert allocator.reserved_bytes == 20 * MIB


def test_a_tape_is_replayed() -> None:
    tape = Tape()
    tape.begin("first")
    a = tape.take(3 * BLOCK_BYTES)
    empty = tape.take(0)
    tape.begin("second")
    tape.pass_through([BLOCK_BYTES, BLOCK_BYTES])
    tape.give(a)
    tape.give(empty)
    tape.begin("third")
    tape.pass_through([2 * BLOCK_BYTES])
    assert tape.peak() == (5 * BLOCK_BYTES, "second")
    allocator = CachingAllocator()
    allocator.take(1)
    assert allocator.replay(tape) == allocator.replay(tape) == (6 * BLOCK_BYTES, "second")
    assert allocator.allocated_bytes == BLOCK_BYTES
    assert Tape().peak() == (0, "")
    assert allocator.replay(Tape()) == (BLOCK_BYTES, "")


def test_small_and_large_blocks_do_not_mix() -> None:
    allocator = CachingAllocator()
    allocator.give(allocator.take(20 * MIB))
    allocator.take(MIB)
    assert allocator.reserved_bytes == 22 * MIB
