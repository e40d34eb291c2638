"""Boxes lie in rows and do not overlap; arrows go down and pass beside boxes."""

import random

import pytest

from foretell.rendering.svg.graph_layout import Box, Layout, lay_out


def graph_of(seed: int, boxes: int, reach: int) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    chance = random.Random(seed)
    edges = {(chance.randrange(max(0, i - reach), i), i) for i in range(1, boxes) for _ in range(2)}
    return [(chance.uniform(40, 160), chance.uniform(20, 90)) for _ in range(boxes)], sorted(edges)


def inside(box: Box, x: float, y: float) -> bool:
    return box.x + 1 < x < box.x + box.width - 1 and box.y + 1 < y < box.y + box.height - 1


@pytest.mark.parametrize("seed", range(4))
def test_boxes_do_not_overlap_and_arrows_go_down(seed):
    sizes, edges = graph_of(seed, 60, 25)
    layout = lay_out(sizes, edges)
    for i, one in enumerate(layout.boxes):
        assert -1e-6 <= one.x <= one.x + one.width <= layout.width + 1e-6
        assert one.y + one.height <= layout.height + 1e-6
        for other in layout.boxes[:i]:
            apart = one.x >= other.x + other.width or other.x >= one.x + one.width
            assert apart or one.y >= other.y + other.height or other.y >= one.y + one.height
    for (source, target), route in zip(edges, layout.routes, strict=True):
        begin, end = layout.boxes[source], layout.boxes[target]
        assert begin.y + begin.height < end.y
        assert begin.x <= route.pieces[0][0] <= begin.x + begin.width
        assert end.x <= route.pieces[-1][0] <= end.x + end.width
        assert route.pieces[-1][2] == end.y


@pytest.mark.parametrize("seed", range(4))
def test_upright_pieces_of_arrows_cross_no_box(seed):
    sizes, edges = graph_of(seed, 60, 25)
    layout = lay_out(sizes, edges)
    for route in layout.routes:
        for x, top, bottom in route.pieces:
            assert not any(inside(box, x, y) for box in layout.boxes for y in (top, (top + bottom) / 2, bottom))


def test_a_chain_is_one_column_and_its_skip_goes_around():
    layout = lay_out([(80, 30), (40, 30), (80, 30)], [(0, 1), (0, 2), (1, 2)])
    centres = [box.x + box.width / 2 for box in layout.boxes]
    assert max(centres) - min(centres) < 5
    skip = layout.routes[1]
    assert len(skip.pieces) == 3
    assert not skip.lane


def test_a_long_skip_runs_in_a_lane_at_the_side():
    count = 40
    edges = [(i, i + 1) for i in range(count - 1)]
    layout = lay_out([(50, 20)] * count, [*edges, (0, count - 1), (2, count - 3)])
    asides = [route for route in layout.routes if route.lane]
    assert len(asides) == 2
    edge = max(box.x + box.width for box in layout.boxes)
    lanes = {route.pieces[1][0] for route in asides}
    assert len(lanes) == 2
    assert edge < min(lanes) < max(lanes) < layout.width


def test_lanes_are_used_again():
    edges = [(i, i + 1) for i in range(59)] + [(0, 20), (30, 59)]
    layout = lay_out([(50, 20)] * 60, edges)
    assert len({route.pieces[1][0] for route in layout.routes if route.lane}) == 1


def test_many_boxes_without_order_make_several_rows():
    layout = lay_out([(50, 20)] * 100, [])
    assert len({box.y for box in layout.boxes}) > 5


def test_a_source_stands_near_its_reader():
    layout = lay_out([(50, 20)] * 6, [(0, 1), (1, 2), (2, 3), (3, 5), (4, 5)])
    assert layout.boxes[4].y == layout.boxes[3].y


def test_crossings_that_can_be_avoided_are_avoided():
    layout = lay_out([(50, 20)] * 6, [(0, 5), (1, 4), (2, 3)])
    order = sorted(range(3), key=lambda i: layout.boxes[i].x)
    assert sorted(range(3, 6), key=lambda i: layout.boxes[i].x) == [5 - i for i in order]


def test_an_empty_graph_has_size_zero():
    assert lay_out([], []) == Layout((), (), 0.0, 0.0)
