"""The caching allocator, request by request; sizes in MiB unless said otherwise."""

import random
from itertools import pairwise

import pytest

from foretell.graph.memory.allocator import BLOCK_BYTES, Block, CachingAllocator, Tape
from foretell.units import MIB


@pytest.mark.parametrize(
    ("requested_bytes", "allocated_bytes", "reserved_bytes"),
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
def test_sizes_of_the_blocks_that_requests_get(requested_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(requested_bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated_bytes, reserved_bytes)


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(14 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(12 * MIB).size == 12 * MIB  # from the 14
    assert allocator.allocate(13 * MIB).size == 13 * MIB  # from the 40
    assert allocator.allocate(26 * MIB + 512).size == 27 * MIB  # what is left of it, whole
    assert allocator.reserved_bytes == 54 * MIB


def test_freed_neighbours_merge_whatever_the_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
        for position in order:
            allocator.free(blocks[position])
        assert allocator.allocated_bytes == 0
        assert allocator.allocate(19 * MIB + 512).size == 20 * MIB  # the whole segment again
        assert allocator.reserved_bytes == 20 * MIB


def test_a_tape_is_replayed() -> None:
    tape = Tape()
    tape.begin("first")
    a = tape.allocate(3 * BLOCK_BYTES)
    empty = tape.allocate(0)
    tape.begin("second")
    tape.allocate_briefly([BLOCK_BYTES, BLOCK_BYTES])
    tape.free(a)
    tape.free(empty)
    tape.begin("third")
    tape.allocate_briefly([2 * BLOCK_BYTES])
    assert tape.peak() == (5 * BLOCK_BYTES, "second")
    allocator = CachingAllocator()
    allocator.allocate(1)
    assert allocator.replay(tape) == allocator.replay(tape) == (6 * BLOCK_BYTES, "second")
    assert allocator.allocated_bytes == BLOCK_BYTES
    assert Tape().peak() == (0, "")
    assert allocator.replay(Tape()) == (BLOCK_BYTES, "")


def test_small_and_large_blocks_do_not_mix() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 22 * MIB


def walk(block: Block) -> list[Block]:
    """All blocks of a segment, from the first on."""
    while block.before is not None:
        block = block.before
    walked = [block]
    while walked[-1].after is not None:
        walked.append(walked[-1].after)
    return walked


def test_blocks_tile_their_segment_after_any_sequence_of_requests() -> None:
    """A thousand requests at random: neighbours touch, know each other, and never two of them are free."""
    draw = random.Random(0)
    allocator, live = CachingAllocator(), []
    for _ in range(1000):
        if live and draw.random() < 0.5:
            allocator.free(live.pop(draw.randrange(len(live))))
        else:
            live.append(allocator.allocate(draw.choice([1, 4000, MIB // 2, MIB, 2 * MIB, 7 * MIB, 12 * MIB + 1])))
        assert allocator.allocated_bytes == sum(block.size for block in live)
    seen: dict[int, Block] = {}
    for one in live:
        blocks = walk(one)
        for block, after in pairwise(blocks):
            assert after.before is block
            assert block.address + block.size == after.address
            assert block.pool is after.pool
            assert not (block.free and after.free)
        seen |= {block.address: block for block in blocks}
    addresses = sorted(seen.values(), key=lambda block: block.address)
    assert all(a.address + a.size <= b.address for a, b in pairwise(addresses)), "no two blocks overlap"
    for block in live:
        allocator.free(block)
    reserved = allocator.reserved_bytes
    assert allocator.allocated_bytes == 0
    large = [allocator.allocate(2 * MIB) for _ in range(10)]
    assert allocator.reserved_bytes == reserved, "what was given back is handed out again"
    assert {block.free for block in large} == {False}


def test_a_middle_block_merges_with_both_sides() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    allocator.free(blocks[2])
    assert allocator.allocate(12 * MIB).address == 4 * MIB
    assert [block.size for block in walk(blocks[0])] == [4 * MIB, 12 * MIB, 4 * MIB]


def test_the_first_of_equal_blocks_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for block in (blocks[3], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(4 * MIB).address == 4 * MIB


@pytest.mark.parametrize(("left_bytes", "is_split"), [(MIB, False), (MIB + 512, True)])
def test_a_remainder_above_one_mebibyte_is_split_off(left_bytes: int, is_split: bool) -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(20 * MIB - left_bytes)
    assert (block.after is not None) == is_split
    assert block.size == (20 * MIB - left_bytes if is_split else 20 * MIB)


def test_small_blocks_always_split_off_their_remainder() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(MIB)
    second = allocator.allocate(MIB - 512)
    assert second.address == MIB
    assert second.after is not None
    assert second.after.size == 512
    assert allocator.allocate(512) is second.after
    assert allocator.reserved_bytes == 2 * MIB
    assert (first.size, second.size) == (MIB, MIB - 512)


def test_requests_at_the_limits_of_their_segments() -> None:
    def reserved(size_bytes: int) -> int:
        allocator = CachingAllocator()
        allocator.allocate(size_bytes)
        return allocator.reserved_bytes // MIB

    assert [reserved(size) for size in (MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB + 1)] == [2, 20, 20, 10, 22]


def test_a_peak_belongs_to_the_first_node_that_reaches_it() -> None:
    tape = Tape()
    for name in ("before", "first", "again"):
        tape.begin(name)
        tape.allocate_briefly([BLOCK_BYTES] if name == "before" else [2 * BLOCK_BYTES])
    assert tape.peak() == (2 * BLOCK_BYTES, "first")
    assert CachingAllocator().replay(tape) == (2 * BLOCK_BYTES, "first")
    assert [tape.node_at(event) for event in range(6)] == ["before", "before", "first", "first", "again", "again"]
    assert tape.node_at(-1) == ""
    assert tape.count == 3


def test_a_replay_and_blocks_that_stay_are_those_of_one_request_after_the_other() -> None:
    """Tapes at random: what is replayed at once, and held from the start, is what single requests would get."""
    draw = random.Random(1)
    sizes = [1, 512, 4000, MIB // 2, MIB - 1, MIB, MIB + 1, 2 * MIB, 7 * MIB, 10 * MIB, 11 * MIB, 12 * MIB + 1]
    for _ in range(40):
        held = tuple(draw.choices(sizes, k=draw.randrange(12)))
        tape, live = Tape(), list[int]()
        for step in range(60):
            tape.begin(str(step))
            if live and draw.random() < 0.4:
                tape.free(live.pop(draw.randrange(len(live))))
            elif draw.random() < 0.4:
                tape.allocate_briefly(draw.choices(sizes, k=draw.randrange(1, 3)))
            else:
                live.append(tape.allocate(draw.choice([0, *sizes])))
        for number in live:
            tape.free(number)
        quick, slow = CachingAllocator.holding(held), CachingAllocator()
        for size in held:
            slow.allocate(size)
        assert quick.allocated_bytes == slow.allocated_bytes
        for _ in range(2):
            most, peak_event, blocks = slow.allocated_bytes, -1, list[Block | None]()
            for position, event in enumerate(tape.events):
                if event >= 0:
                    blocks.append(slow.allocate(event) if event else None)
                    if slow.allocated_bytes > most:
                        most, peak_event = slow.allocated_bytes, position
                elif (block := blocks[~event]) is not None:
                    slow.free(block)
            assert quick.replay(tape) == (most, tape.node_at(peak_event))
            assert quick.allocated_bytes == slow.allocated_bytes
