"""A tall layout is folded into columns that fit a screen."""

from foretell.rendering.svg.graph_columns import fold
from foretell.rendering.svg.graph_layout import lay_out


def chain(length: int) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    return [(120.0, 60.0)] * length, [(i, i + 1) for i in range(length - 1)]


def test_a_long_chain_becomes_about_as_wide_as_a_screen() -> None:
    sizes, edges = chain(40)
    layout = lay_out(sizes, edges)
    assert layout.height > 30 * layout.width
    folded = fold(layout, edges)
    assert 0.8 < folded.width / folded.height < 3.2
    columns = len({round(box.x) for box in folded.boxes})
    assert columns > 3
    assert len(folded.crossing) == columns - 1  # one arrow leads into each column but the first
    places = {(round(box.x), round(box.y)) for box in folded.boxes}
    assert len(places) == 40
    assert all(box.y + box.height <= folded.height and box.x + box.width <= folded.width for box in folded.boxes)


def test_arrows_inside_a_column_move_with_their_boxes() -> None:
    sizes, edges = chain(40)
    folded = fold(lay_out(sizes, edges), edges)
    for number, (source, target) in enumerate(edges):
        if number not in folded.crossing:
            (x, begin, _), (to, _, end) = folded.routes[number].pieces[0], folded.routes[number].pieces[-1]
            assert folded.boxes[source].x <= x <= folded.boxes[source].x + folded.boxes[source].width
            assert begin == folded.boxes[source].y + folded.boxes[source].height
            assert folded.boxes[target].x <= to <= folded.boxes[target].x + folded.boxes[target].width
            assert end == folded.boxes[target].y


def test_a_small_layout_stays_as_it_is() -> None:
    sizes, edges = chain(2)
    layout = lay_out(sizes, edges)
    assert fold(layout, edges).boxes == layout.boxes
    assert fold(lay_out([], []), []).boxes == ()
