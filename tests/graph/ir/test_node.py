"""Attributes are read with the type that is asked for."""

from foretell.graph import Node


def test_attributes() -> None:
    node = Node(
        "n", "Conv", (), ("y",), {"group": 4, "strides": (2, 2), "mode": "linear", "axis": 1.0, "scales": (0.5,)}
    )
    assert node.integer("group", 1) == 4
    assert node.integer("axis", 0) == 1
    assert node.integer("mode", 7) == 7
    assert node.integers("strides") == (2, 2)
    assert node.integers("group") == (4,)
    assert node.integers("scales") is None
    assert node.integers("absent") is None
    assert node.text("mode") == "linear"
    assert node.text("group", "none") == "none"
