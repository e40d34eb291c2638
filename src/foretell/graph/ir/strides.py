"""Graph: strides, the distance from one index of an axis to the next, and what they allow: views, or only copies.

A tensor can be seen in another shape if its strides allow that (`viewed_strides`); otherwise the reshape copies. An
``einsum`` depends on it, too. PyTorch carries it out pair by pair; of three operands it multiplies those two first that
make the fewest multiplications in all (``opt_einsum``). Axes that only one of a pair has and nobody needs any more are
summed first. If no axis is left to sum, the pair is multiplied element by element. Otherwise
the axes of each operand are put into the order (common, kept, summed) and each group is merged into one axis, which
copies the operand unless its strides allow a view. The result of the batched product lies in the order (common, kept of
the left, kept of the right), where the two change places if the result is written so.

Source: ``computeStride_impl`` in ATen/TensorUtils.cpp; ``einsum`` and ``sumproduct_pair`` in ATen/native/Linear.cpp.
Limits: no ellipsis and no repeated axis within an operand of an ``einsum``; four and more operands are multiplied from
the left; without the package ``opt_einsum`` three are, too.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from foretell.frozen import dataclass


@lru_cache(maxsize=4096)
def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(reversed(list(accumulate(shape[:0:-1], mul, initial=1)))) if shape else ()


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor lies row-major. An axis of size 1 may have any stride, and an empty tensor any layout."""
    step = 1
    for size, stride in zip(shape[::-1], strides[::-1]):
        if stride != step and size != 1:
            return 0 in shape
        step *= size
    return True


def viewed_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of a reshaped view, or None where a copy is needed (the rule of ``torch.Tensor.view``).

    Axes of the old shape form a chunk if they lie in memory as one axis would: the stride of each is the stride of the
    next times its size. A view exists if every chunk can be cut into whole axes of the new shape. Both shapes are
    walked from the last axis to the first.

    >>> viewed_strides((2, 3, 4), (12, 4, 1), (6, 4)), viewed_strides((3, 2), (1, 3), (6,))
    ((4, 1), None)
    """
    if 0 in shape or not shape:  # no element, or exactly one: any strides will do
        return contiguous(new_shape)
    new_strides = [0] * len(new_shape)
    position = len(new_shape) - 1
    chunk_stride = strides[-1]
    chunk_size = remaining = 1
    for axis in range(len(shape) - 1, -1, -1):
        chunk_size *= shape[axis]
        # an axis of size 1 never ends a chunk: its stride is never used
        chunk_ends = axis == 0 or (shape[axis - 1] != 1 and strides[axis - 1] != chunk_size * chunk_stride)
        if not chunk_ends:
            continue
        while position >= 0 and (remaining < chunk_size or new_shape[position] == 1):
            new_strides[position] = remaining * chunk_stride
            remaining *= new_shape[position]
            position -= 1
        if remaining != chunk_size:  # an axis of the new shape would span two chunks
            return None
        if axis > 0:
            chunk_stride = strides[axis - 1]
            chunk_size = remaining = 1
    return tuple(new_strides) if position < 0 else None


def merged_axes(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sizes of the axes that an element-wise kernel walks over, from the outermost to the innermost.

    TensorIterator sorts the axes by the strides of the first operand, drops those of size 1, and merges two that lie
    one after the other in memory in every operand. One axis is left where all operands are dense and alike, and only
    then the kernel reads and writes vectors. An axis along which an operand is broadcast has stride 0.

    >>> merged_axes((8, 3, 4), [(12, 4, 1), (12, 4, 1)]), merged_axes((8, 3, 4), [(12, 4, 1), (0, 4, 1)])
    ((96,), (8, 12))
    """
    axes = [(size, steps) for size, *steps in zip(shape, *strides) if size != 1]
    axes.sort(key=lambda axis: -axis[1][0])
    merged: list[tuple[int, list[int]]] = []
    for size, steps in axes:
        if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], steps)):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return tuple(size for size, _ in merged) or (1,)


@dataclass(frozen=True, slots=True)
class EinsumPlan:
    """What an ``einsum`` does: the operands that it copies, the results in between, and the strides of its result.

    ``order`` has the positions of the operands in the order in which they are multiplied. ``copied`` are positions of
    operands, -1 for a result in between; sizes are in elements.
    """

    order: tuple[int, ...]
    copied: tuple[int, ...]
    copies: tuple[int, ...]
    between: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand with one size and stride for each axis of the equation; an axis that it lacks has size 1."""

    position: int  # -1 for a result in between
    sizes: dict[str, int]
    strides: dict[str, int]

    def has(self, axis: str) -> bool:
        return self.sizes.get(axis, 1) != 1


def plan_einsum(equation: str, shapes: list[tuple[int, ...]], strides: list[tuple[int, ...]]) -> EinsumPlan | None:
    """The plan of an ``einsum``, or None for an equation that is not looked into.

    >>> plan = plan_einsum("bij,bkj->bki", [(2, 3, 4), (2, 5, 4)], [(12, 4, 1), (20, 4, 1)])
    >>> plan.copied, plan.strides
    ((), (15, 3, 1))
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    if not arrow or "." in equation or any(len({*term}) < len(term) for term in labels):
        return None
    if [len(term) for term in labels] != [len(shape) for shape in shapes]:
        return None
    operands = [
        _Operand(position, dict(zip(term, shape)), dict(zip(term, steps)))
        for position, (term, shape, steps) in enumerate(zip(labels, shapes, strides, strict=True))
    ]
    copied: list[int] = []
    copies: list[int] = []
    between: list[int] = []
    # axes are kept in the order of the result, the others after them by their letters
    axes = [*result, *sorted({axis for operand in operands for axis in operand.sizes} - {*result})]
    order = einsum_order([operand.sizes for operand in operands], result)
    waiting = [operands[place] for place in order]
    left = waiting.pop(0)
    while waiting:
        right = waiting.pop(0)
        needed = {*result} | {axis for operand in waiting for axis in operand.sizes if operand.has(axis)}
        pair = (right, left) if between else (left, right)
        left, made = _multiply(*pair, axes, needed, copied, copies)
        if waiting:
            between.append(made)
    final = tuple(left.strides.get(axis, 0) for axis in result)
    return EinsumPlan(tuple(order), tuple(copied), tuple(copies), tuple(between), final)


def einsum_order(operands: Sequence[Mapping[str, int]], result: str) -> list[int]:
    """The order in which PyTorch multiplies the operands of an ``einsum``, which are sizes by axis.

    >>> einsum_order([{"b": 8, "i": 64}, {"i": 64, "j": 64}, {"b": 8, "j": 64}], "b")
    [0, 1, 2]
    >>> einsum_order([{"i": 64}, {"j": 64}, {"i": 64}], "j")
    [0, 2, 1]
    """
    if len(operands) != 3:
        return list(range(len(operands)))
    orders = [[0, 1, 2], [0, 2, 1], [1, 2, 0]]
    return min(orders, key=lambda order: _multiplications([operands[place] for place in order], result))


def _multiplications(operands: Sequence[Mapping[str, int]], result: str) -> int:
    """How many multiplications three operands take in their order."""
    first, second, third = ({axis: size for axis, size in sizes.items() if size != 1} for sizes in operands)
    pair = first | second
    kept = {axis: size for axis, size in pair.items() if axis in result or axis in third}
    return prod(pair.values()) + prod((kept | third).values())


def _multiply(
    left: _Operand, right: _Operand, order: list[str], needed: set[str], copied: list[int], copies: list[int]
) -> tuple[_Operand, int]:
    """The product of two operands and its size; operands that are copied are added to ``copied`` and ``copies``."""
    summed = [axis for axis in order if left.has(axis) and right.has(axis) and axis not in needed]
    common = [axis for axis in order if left.has(axis) and right.has(axis) and axis in needed]
    # what only one operand has and nobody needs is summed before, and is gone
    rows = [axis for axis in order if left.has(axis) and not right.has(axis) and axis in needed]
    columns = [axis for axis in order if right.has(axis) and not left.has(axis) and axis in needed]
    # the operands change places where that brings the axes into the order of the result
    if rows and columns and order.index(columns[-1]) < order.index(rows[0]):
        left, right, rows, columns = right, left, columns, rows
    if summed:
        for operand, groups in ((left, (common, rows, summed)), (right, (common, summed, columns))):
            if not _is_view(operand, groups):
                copied.append(operand.position)
                copies.append(prod(operand.sizes.values()))
        axes = [*common, *rows, *columns]
    else:  # an element-wise product
        axes = [axis for axis in order if axis in {*common, *rows, *columns}]
    sizes = {axis: max(left.sizes.get(axis, 1), right.sizes.get(axis, 1)) for axis in axes}
    return _Operand(-1, sizes, dict(zip(axes, contiguous(tuple(sizes.values()))))), prod(sizes.values())


def _is_view(operand: _Operand, groups: tuple[list[str], ...]) -> bool:
    """Whether three groups of axes, permuted and each merged into one, are a view of the operand."""
    order = [axis for group in groups for axis in group]
    shape = tuple(operand.sizes[axis] for axis in order)
    merged = tuple(prod(operand.sizes[axis] for axis in group) for group in groups)
    return viewed_strides(shape, tuple(operand.strides[axis] for axis in order), merged) is not None
