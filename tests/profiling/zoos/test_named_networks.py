"""Networks are registered once, with what they are fed and their sizes."""

import pytest

pytest.importorskip("torch")

from foretell.profiling.zoos import named_networks as registry
from foretell.profiling.zoos.named_networks import Module, integers, network, numbers, registered


def test_a_name_is_taken_once(monkeypatch):
    monkeypatch.setattr(registry, "_networks", {})
    make = network("field", "registered-once", lambda s: (numbers(s["width"]), integers(9, 2)), "width=3", "width=5")
    assert make(Module) is Module
    registered_network = registered()["registered-once"]
    assert registered_network.sizes == ({"width": 3}, {"width": 5})
    assert [(entry.shape, entry.below) for entry in registered_network.inputs(registered_network.sizes[1])] == [
        ((5,), 0),
        ((2,), 9),
    ]
    with pytest.raises(ValueError, match="registered-once"):
        make(Module)
