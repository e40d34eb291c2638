"""What a forward pass does by the number of a layer is seen in its source."""

import ast

import pytest

from foretell.frontends.huggingface.numbering import _loops, _notes, _reads_lists, _reads_number


def function(body: str) -> ast.AST:
    return ast.parse(f"def forward(self, x, cache=None):\n    {body}").body[0]


@pytest.mark.parametrize(
    "body",
    [
        "return cache.update(x, x, self.layer_idx)",
        "return cache.update(x, layer_idx=self.layer_idx)",
        "return cache.layers[self.layer_idx].keys",
        "return cache.is_updated.get(self.layer_idx)",
        "return self.config.layer_types[self.layer_idx]",
        "return x if hasattr(self, 'layer_idx') else x",
        "raise ValueError(f'layer {self.layer_idx}')",
    ],
)
def test_a_number_may_find_what_belongs_to_the_layer(body: str) -> None:
    assert not _reads_number(function(body), {"layer_idx"}, {"layer_types"})


@pytest.mark.parametrize(
    "body",
    [
        "return x if self.layer_idx == 3 else x + 1",
        "return x if self.layer_idx else x + 1",
        "return x * self.layer_idx",
        "number = self.layer_idx",
        "return self.scales[self.layer_idx]",
        "return self.layers[self.layer_idx](x)",
        "return helper(x, self.layer_idx)",
        "return getattr(self, 'layer_idx')",
        "return self.__dict__['layer_idx']",
        "return [x for layer in self.layers if layer.layer_idx % 2]",
    ],
)
def test_a_number_may_decide_nothing(body: str) -> None:
    assert _reads_number(function(body), {"layer_idx"}, {"layer_types"})


@pytest.mark.parametrize(
    "body", ["self.state.count += 1", "cache.seen.append(x)", "global seen", "next(self.rest)", "cache['n'] += 1"]
)
def test_what_a_layer_notes_elsewhere_may_count(body: str) -> None:
    assert any(_notes(node, function(body)) for node in ast.walk(function(body)))


def test_what_a_layer_keeps_for_itself_counts_nothing() -> None:
    assert not any(_notes(node, function("self.seen = x")) for node in ast.walk(function("self.seen = x")))
    local = function("parts = []\n    parts.append(x)")
    assert not any(_notes(node, local) for node in ast.walk(local))
    alias = function("parts = self.parts\n    parts.append(x)")
    assert any(_notes(node, alias) for node in ast.walk(alias))


@pytest.mark.parametrize(
    ("body", "loops"),
    [
        ("for layer in self.layers: x = layer(x)", 1),
        ("for layer in self.layers[: self.config.num_hidden_layers]: x = layer(x)", 1),
        ("for i, layer in enumerate(self.layers): x = layer(x, masks[self.config.layer_types[i]])", 1),
        ("return cache.layers[0]", 0),
        ("for i, layer in enumerate(self.layers): x = layer(x, i)", None),
        ("for i, layer in enumerate(self.layers): x = layer(x) if i > 2 else x", None),
        ("for layer in self.layers[1:]: x = layer(x)", None),
        ("for layer in self.layers[:4]: x = layer(x)", None),
        ("for layer, scale in zip(self.layers, self.scales): x = layer(x) * scale", None),
        ("return self.layers[0](x)", None),
        ("return x / len(self.layers)", None),
        ("for layer in self.layers:\n        x = layer(x)\n        if x is None: break", None),
        ("for layer in self.layers:\n        x = layer(x)\n        n += 1", None),
        ("for layer in self.layers:\n        x = layer(x) if len(seen) > 3 else x", None),
    ],
)
def test_a_loop_does_the_same_for_each_layer(body: str, loops: int | None) -> None:
    assert _loops(function(body), "layers", {"layer_types"}) == loops


def test_lists_of_the_configuration_are_asked_for_the_entry_of_a_layer() -> None:
    def reads(body: str) -> bool:
        return _reads_lists(function(body), {"layer_idx"}, {"layer_types"}, "layers")

    assert not reads("for i, layer in enumerate(self.layers): x = layer(x, self.config.layer_types[i])")
    assert not reads("for kind in set(self.config.layer_types): x = x")
    assert not reads("return x if 'full' in self.config.layer_types else None")
    assert reads("for kind in self.config.layer_types: x = x + 1")
    assert reads("return len(self.config.layer_types)")
    assert reads("return self.config.layer_types[5]")
