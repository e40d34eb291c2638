"""Graph: replays PyTorch's caching allocator on CUDA to find what ``torch.cuda.max_memory_allocated`` will report.

Idea: record every allocation and every free of a run on a `Tape`, then let a `CachingAllocator` serve them as PyTorch
would, and watch the largest sum of blocks that are handed out. Adding up tensor sizes is not enough, because the
allocator hands out more than it is asked for:

* Rounding. A request is rounded up to a multiple of 512 bytes.
* Segments. Memory comes from the device in segments: 2 MiB for requests up to 1 MiB, 20 MiB for requests below 10 MiB,
  and for larger ones a segment of their own, rounded up to 2 MiB. Small and large requests have separate pools.
* Best fit. The smallest free block that is large enough is taken; a new segment only if there is none.
* Splitting. The rest of a block becomes a free block again. In the large pool this happens only if more than 1 MiB is
  left. So a request may get up to 1 MiB more than it asked for, and all of it counts as allocated.
* Merging. A freed block merges with free neighbours of its segment.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch, with its default settings. xMem (arXiv 2510.21048) showed that
replaying this allocator predicts the peak of a training run well.

Limits: one stream and one device. ``PYTORCH_CUDA_ALLOC_CONF`` (expandable segments, ``max_split_size_mb``, garbage
collection), ``torch.cuda.empty_cache`` and the private pools of CUDA graphs are not modelled. The memory of the CUDA
context lies outside the allocator and is not counted.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from foretell.frozen import dataclass
from foretell.units import KIB, MIB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# in CUDACachingAllocator: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge
BLOCK_BYTES = KIB // 2
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_BYTES = 10 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
SEGMENT_STEP_BYTES = 2 * MIB
# small blocks are always split; large ones only if strictly more than 1 MiB is left
LEAST_SMALL_REST, LEAST_LARGE_REST = BLOCK_BYTES, SMALL_BYTES + 1


def rounded(size_bytes: int, step_bytes: int = BLOCK_BYTES) -> int:
    """Round a size up to whole steps; by default to the allocator's smallest block.

    >>> rounded(0), rounded(1), rounded(513)
    (0, 512, 1024)
    """
    return -(-size_bytes // step_bytes) * step_bytes


class Tape:
    """The allocations and frees of a run in their order, and the node that each belongs to."""

    __slots__ = ("count", "events", "nodes", "starts")

    def __init__(self) -> None:
        # one integer an event, to keep tapes of long runs small: a size to allocate (0 or more), or ~number (below 0)
        # to free the block of that number
        self.events: list[int] = []
        self.count = 0  # of blocks allocated so far; a block's number is its place among them
        self.nodes: list[str] = []
        self.starts: list[int] = []  # the index of the first event of each node

    def begin(self, node: str) -> None:
        """Attribute the events from here on to ``node``."""
        self.starts.append(len(self.events))
        self.nodes.append(node)

    def allocate(self, size_bytes: int) -> int:
        """Allocate a block; returns its number."""
        self.events.append(size_bytes)
        self.count += 1
        return self.count - 1

    def free(self, number: int) -> None:
        """Free the block of this number."""
        self.events.append(~number)

    def allocate_briefly(self, sizes_bytes: Sequence[int]) -> None:
        """Allocate blocks that are all alive at the same time, then free all of them."""
        for number in [self.allocate(size) for size in sizes_bytes]:
            self.free(number)

    def node_at(self, event: int) -> str:
        """The node that an event belongs to."""
        position = bisect_right(self.starts, event)
        return self.nodes[position - 1] if position else ""

    def peak(self) -> tuple[int, str]:
        """The largest sum of live blocks, each rounded up, and the node that reaches it."""
        live = most = peak_event = 0
        sizes: list[int] = []
        for position, event in enumerate(self.events):
            if event >= 0:
                size = rounded(event)
                sizes.append(size)
                live += size
                if live > most:
                    most, peak_event = live, position
            else:
                live -= sizes[~event]
        return most, self.node_at(peak_event) if most else ""


_ALLOCATE, _FREE, _PASS = range(3)


@dataclass(frozen=True, slots=True)
class Plan:
    """The events of a tape for an allocator: small requests are added up between large ones.

    A step is what to do, and how much small requests take together at most until the next step. To allocate, a step has
    the rounded size and the number of the block; to free, 0 and the number. Of a block that the next event frees it has
    what small requests take at that moment, and the size.
    """

    steps: list[tuple[int, int, int, int]]
    most_before: int  # of small requests, before the first step
    left: int  # of small requests at the end
    positions: "NDArray[np.intp]"  # of the event of each step
    small: "NDArray[np.int64]"  # what small requests take after each event

    @classmethod
    def of(cls, events: Sequence[int]) -> "Plan":
        """The plan for some events."""
        import numpy as np  # commands that predict nothing start without it

        if not events:
            return cls([], 0, 0, np.zeros(0, np.intp), np.zeros(0, np.int64))
        asked = np.array(events, np.int64)
        is_request = asked >= 0
        sizes = asked[is_request]
        block = np.where(is_request, np.cumsum(is_request) - 1, ~asked)  # of each event
        # 0: PyTorch allocates nothing for an empty tensor
        whole, is_small = -(-sizes // BLOCK_BYTES) * BLOCK_BYTES, sizes <= SMALL_BYTES
        changes = np.where(is_small, whole, 0)[block]
        small = np.cumsum(np.where(is_request, changes, -changes))
        large = np.flatnonzero(~is_small[block])
        if not len(large):
            return cls([], int(small.max()), int(small[-1]), large, small)
        most = np.maximum.reduceat(small, large)
        most_before = int(small[: large[0]].max()) if large[0] else 0
        numbers, requests = block[large], is_request[large]
        # a request that is followed by the event that frees it
        passes = requests[:-1] & (large[1:] - large[:-1] == 1) & (numbers[:-1] == numbers[1:])
        what, taken = np.where(requests, _ALLOCATE, _FREE), whole[numbers]
        columns = np.stack([what, np.where(requests, taken, 0), numbers, most])
        if passes.any():
            # the event that frees what has passed is no step; small requests may follow it
            at = np.flatnonzero(passes)
            columns[:, at] = np.full(len(at), _PASS), small[large[at]], taken[at], np.maximum(most[at], most[at + 1])
            is_step = np.ones(len(large), bool)
            is_step[at + 1] = False
            columns, large = columns[:, is_step], large[is_step]
        return cls(list(zip(*columns.tolist(), strict=True)), most_before, int(small[-1]), large, small)

    def event(self, step: int, is_passing: bool) -> int:
        """The first event between a step and the next one at which small requests take most; 0 is before all steps."""
        start = int(self.positions[step - 1]) if step else 0
        if is_passing:
            return start
        end = int(self.positions[step]) if step < len(self.positions) else len(self.small)
        return start + int(self.small[start:end].argmax())


class Block:
    """A piece of a segment, linked to its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: "_Pool", before: "Block | None", after: "Block | None") -> None:
        self.address, self.size, self.pool, self.before, self.after = address, size, pool, before, after
        self.free = False


class _Pool:
    """The free blocks of the small or of the large segments, smallest first."""

    __slots__ = ("min_remainder", "order")

    def __init__(self, min_remainder: int) -> None:
        self.min_remainder = min_remainder  # a block is split only if at least this much is left
        self.order: list[tuple[int, int, Block]] = []  # (size, address, block), sorted; addresses are unique

    def put(self, address: int, size: int) -> None:
        """Add a free block whose neighbours will never be free."""
        block = Block(address, size, self, None, None)
        block.free = True
        insort(self.order, (size, address, block))


class CachingAllocator:
    """The state of PyTorch's caching allocator after the requests so far."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._small, self._large = _Pool(LEAST_SMALL_REST), _Pool(LEAST_LARGE_REST)

    @classmethod
    def holding(cls, sizes_bytes: tuple[int, ...]) -> "CachingAllocator":
        """An allocator with blocks of these sizes, which are never freed: the weights of a model.

        The segments of small ones are not counted as reserved.
        """
        allocator = cls()
        allocator.allocated_bytes, allocator.reserved_bytes, large = _holding(sizes_bytes)
        for size, address in large:
            allocator._large.put(address, size)
        return allocator

    def allocate(self, size_bytes: int) -> Block:
        """Allocate a block of at least this size."""
        return self.take(-(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)

    def take(self, size: int) -> Block:
        """Allocate a block of at least this size, which is rounded already."""
        pool = self._small if size <= SMALL_BYTES else self._large
        order = pool.order
        # (size,) sorts before every block of this size: the first one that is large enough, at the lowest address
        position = bisect_left(order, (size,))
        if position < len(order):
            block = order.pop(position)[2]
            block.free = False
        else:
            block = self._segment(size, pool)
        left = block.size - size
        if left >= pool.min_remainder:
            address, after = block.address + size, block.after
            remainder = Block(address, left, pool, block, after)
            if after is not None:
                after.before = remainder
            block.after, block.size = remainder, size
            remainder.free = True
            insort(order, (left, address, remainder))
        self.allocated_bytes += block.size  # the block, not the request: an unsplit rest counts as allocated
        return block

    def free(self, block: Block) -> None:
        """Free a block, and merge it with free neighbours."""
        size, address, order = block.size, block.address, block.pool.order
        self.allocated_bytes -= size
        before, after = block.before, block.after
        if before is not None and before.free:
            del order[bisect_left(order, (before.size, before.address))]
            address, size, block.before = before.address, size + before.size, before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            del order[bisect_left(order, (after.size, after.address))]
            size, block.after = size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        block.size, block.address, block.free = size, address, True
        insort(order, (size, address, block))

    def replay(self, tape: Tape) -> tuple[int, str]:
        """Serve the events of a tape; returns the most that was allocated at a time and the node that reached it."""
        most, event = self.serve(Plan.of(tape.events))
        return most, tape.node_at(event)

    def serve(self, plan: Plan) -> tuple[int, int]:
        """Do what a plan says; returns the most that was allocated at a time, and the event that reached it.

        A small block is always split to what was asked for, wherever it lies. So small requests are only added up, and
        large ones are served.
        """
        most, peak_step, is_passing = self.allocated_bytes, -1, False
        if plan.most_before and most + plan.most_before > most:
            most, peak_step = most + plan.most_before, 0
        blocks: dict[int, Block] = {}
        for number_of_step, (what, value, number, most_after) in enumerate(plan.steps, 1):
            if what == _ALLOCATE:
                blocks[number] = self.take(value)
            elif what == _FREE:
                self.free(blocks.pop(number))
            else:
                reached = self.allocated_bytes + value + self._passing(number)
                if reached > most:
                    most, peak_step, is_passing = reached, number_of_step, True
            if self.allocated_bytes + most_after > most:
                most, peak_step, is_passing = self.allocated_bytes + most_after, number_of_step, False
        self.allocated_bytes += plan.left
        return most, plan.event(peak_step, is_passing) if peak_step >= 0 else -1

    def _passing(self, size: int) -> int:
        """Allocate a large block and free it at once; returns its size. Splitting and merging undo each other."""
        order = self._large.order
        position = bisect_left(order, (size,))
        if position < len(order):
            whole = order[position][0]
        else:
            block = self._segment(size, self._large)
            block.free, whole = True, block.size
            insort(order, (whole, block.address, block))
        return size if whole - size >= LEAST_LARGE_REST else whole

    def _segment(self, size: int, pool: _Pool) -> Block:
        """Reserve a new segment, as one block without neighbours: blocks of different segments never merge."""
        segment = _segment_bytes(size)
        self.reserved_bytes += segment
        return Block(self.reserved_bytes - segment, segment, pool, None, None)  # addresses only have to be unique


@lru_cache(maxsize=256)
def _holding(sizes_bytes: tuple[int, ...]) -> tuple[int, int, list[tuple[int, int]]]:
    """The bytes allocated and reserved, and the free large blocks, after allocations that stay.

    What `CachingAllocator.allocate` does where nothing is ever freed: no block has to know its neighbours. Small blocks
    are only added up, as in `CachingAllocator.replay`.
    """
    small = [size for size in sizes_bytes if size <= SMALL_BYTES]
    allocated = sum([-(-size // BLOCK_BYTES) for size in small]) * BLOCK_BYTES
    reserved = 0
    order: list[tuple[int, int]] = []  # (size, address) of each free block, sorted
    for size_bytes in sizes_bytes if len(small) < len(sizes_bytes) else ():
        if size_bytes <= SMALL_BYTES:
            continue
        size = rounded(size_bytes)
        position = bisect_left(order, (size,))
        if position < len(order):
            whole, address = order.pop(position)
        else:
            whole, address = _segment_bytes(size), reserved
            reserved += whole
        left = whole - size
        if left >= LEAST_LARGE_REST:
            insort(order, (left, address + size))
            whole = size
        allocated += whole
    return allocated, reserved, order


def _segment_bytes(size: int) -> int:
    """The size of the segment that is reserved for a block."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < LARGE_BYTES else rounded(size, SEGMENT_STEP_BYTES)
