"""graph: the caching allocator of PyTorch on CUDA, replayed: what a program asks for, and what it is handed.

Requests are rounded to 512 bytes and served from segments of the device's memory: those up to 1 MiB from segments of
2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of their own, in steps of 2 MiB. The
smallest free block that is large enough is taken. It is split, but among large blocks only if more than 1 MiB would be
left: a request may be handed up to 1 MiB more than it asked for, and all of it counts as allocated. Freed blocks merge
with free neighbours. (c10/cuda/CUDACachingAllocator.cpp, with its default settings.)
"""

from bisect import bisect_left, bisect_right, insort

from foretell.units import KIB, MIB

BLOCK_BYTES = KIB // 2
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_BYTES = 10 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
SEGMENT_STEP_BYTES = 2 * MIB


def rounded(size_bytes: int, step_bytes: int = BLOCK_BYTES) -> int:
    """A size as the allocator hands it out at least.

    >>> rounded(0), rounded(1), rounded(513)
    (0, 512, 1024)
    """
    return -(-size_bytes // step_bytes) * step_bytes


class Tape:
    """What a run asks of its allocator, in order, and which node asks."""

    __slots__ = ("count", "events", "marks")

    def __init__(self) -> None:
        self.events: list[int] = []  # a size to be handed out; or, negative, the number of the block that is given back
        self.count = 0
        self.marks: list[tuple[int, str]] = []  # where in the events each node begins

    def begin(self, node: str) -> None:
        """From here on, ``node`` asks."""
        self.marks.append((len(self.events), node))

    def take(self, size_bytes: int) -> int:
        """Ask for a block; its number."""
        self.events.append(size_bytes)
        self.count += 1
        return self.count - 1

    def give(self, number: int) -> None:
        """Give a block back."""
        self.events.append(~number)

    def pass_through(self, sizes_bytes: list[int]) -> None:
        """Take blocks and give them back at once."""
        for number in [self.take(size) for size in sizes_bytes]:
            self.give(number)

    def node_at(self, event: int) -> str:
        """Who asked for what."""
        position = bisect_right(self.marks, event, key=lambda mark: mark[0])
        return self.marks[position - 1][1] if position else ""

    def peak(self) -> tuple[int, str]:
        """The largest sum of blocks at a time, each rounded, and the node that brings it about."""
        live = most = where = 0
        sizes: list[int] = []
        for position, event in enumerate(self.events):
            if event >= 0:
                size = rounded(event)
                sizes.append(size)
                live += size
                if live > most:
                    most, where = live, position
            else:
                live -= sizes[~event]
        return most, self.node_at(where) if most else ""


class Block:
    """A piece of a segment, and its neighbours in it."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: "_Pool", before: "Block | None", after: "Block | None") -> None:
        self.address, self.size, self.pool, self.before, self.after = address, size, pool, before, after
        self.free = False


class _Pool:
    """The free blocks of one kind of segment, smallest first."""

    __slots__ = ("blocks", "order", "smallest_rest")

    def __init__(self, smallest_rest: int) -> None:
        self.smallest_rest = smallest_rest  # less than this is not worth a block of its own
        self.order: list[tuple[int, int]] = []  # size and address
        self.blocks: dict[int, Block] = {}  # by address

    def put(self, block: Block) -> None:
        block.free = True
        insort(self.order, (block.size, block.address))
        self.blocks[block.address] = block

    def best_fit(self, size: int) -> Block | None:
        position = bisect_left(self.order, (size, -1))
        if position == len(self.order):
            return None
        block = self.blocks.pop(self.order.pop(position)[1])
        block.free = False
        return block

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.address))]
        del self.blocks[block.address]


class CachingAllocator:
    """Segments and blocks, as they are after all that was asked so far."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._small, self._large = _Pool(BLOCK_BYTES), _Pool(SMALL_BYTES + 1)

    def take(self, size_bytes: int) -> Block:
        """A block of at least that size."""
        size = rounded(size_bytes)
        pool = self._small if size <= SMALL_BYTES else self._large
        block = pool.best_fit(size) or self._segment(size, pool)
        left = block.size - size
        if left >= pool.smallest_rest:
            rest = Block(block.address + size, left, pool, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            pool.put(rest)
        self.allocated_bytes += block.size
        return block

    def give(self, block: Block) -> None:
        """Take a block back, and merge it with free neighbours."""
        self.allocated_bytes -= block.size
        pool, before, after = block.pool, block.before, block.after
        if before is not None and before.free:
            pool.remove(before)
            block.address, block.size, block.before = before.address, block.size + before.size, before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            pool.remove(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        pool.put(block)

    def replay(self, tape: Tape) -> tuple[int, str]:
        """The most that was allocated at a time while a run asked, and the node that brought it about."""
        blocks: list[Block | None] = []
        most, where = self.allocated_bytes, -1
        for position, event in enumerate(tape.events):
            if event >= 0:
                blocks.append(self.take(event) if event else None)
                if self.allocated_bytes > most:
                    most, where = self.allocated_bytes, position
            elif (block := blocks[~event]) is not None:
                self.give(block)
        return most, tape.node_at(where)

    def _segment(self, size: int, pool: _Pool) -> Block:
        """A new piece of the device's memory; segments have no neighbours."""
        if size <= SMALL_BYTES:
            whole = SMALL_SEGMENT_BYTES
        else:
            whole = LARGE_SEGMENT_BYTES if size < LARGE_BYTES else rounded(size, SEGMENT_STEP_BYTES)
        self.reserved_bytes += whole
        return Block(self.reserved_bytes - whole, whole, pool, None, None)
