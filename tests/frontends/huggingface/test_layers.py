"""A model that is traced with few of its layers has the graph of the whole model; models that try to deceive, too."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from foretell.errors import InputError
from foretell.frontends.huggingface import layers as module_of_layers
from foretell.frontends.huggingface.building import build_program
from foretell.frontends.huggingface.configs import HfConfig
from foretell.frontends.huggingface.layers import keep, shorten
from foretell.frontends.torch.export import graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.frontends.torch.tracing import layer_calls, repeats
from foretell.frontends.torch.tracing.stacks import UnequalError
from foretell.graph import Graph

BATCH = 11
MODES = ("inference", "training", "prefill", "decode")
_TEXT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 99}
_DECODER = _TEXT | {"num_key_value_heads": 2, "num_hidden_layers": 9, "pad_token_id": 0}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 9, "n_head": 4, "vocab_size": 99}
_ENCODER = _TEXT | {"num_hidden_layers": 9}
_VISION = {key: value for key, value in _ENCODER.items() if key != "vocab_size"} | {"image_size": 32, "patch_size": 8}
_BOTH: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 9, "decoder_layers": 8, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 99, "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
_T5: dict[str, Any] = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 8, "num_decoder_layers": 9, "num_heads": 4, "vocab_size": 99,
}  # fmt: skip
# families that are not written, and are repeated
REPEATED: dict[str, dict[str, Any]] = {
    "gemma2": _DECODER | {"head_dim": 8, "num_hidden_layers": 10, "sliding_window": 4},
    "gemma3_text": _DECODER | {"head_dim": 8, "num_hidden_layers": 14, "sliding_window": 4},
    "cohere": _DECODER,
    "cohere2": _DECODER | {"sliding_window": 4, "num_hidden_layers": 14},
    "stablelm": _DECODER | {"qk_layernorm": True},
    "starcoder2": _DECODER,
    "olmo": _DECODER,
    "olmo2": _DECODER,
    "olmoe": _DECODER | {"num_experts": 4, "num_experts_per_tok": 2},
    "granite": _DECODER,
    "granitemoe": _DECODER | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "glm4": _DECODER | {"head_dim": 8},
    "glm4_moe": _DECODER
    | {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8,
        "first_k_dense_replace": 2,
    },
    "nemotron": _DECODER,
    "smollm3": _DECODER | {"num_hidden_layers": 14},
    "exaone4": _DECODER | {"num_hidden_layers": 14, "sliding_window": 4},
    "gpt_oss": _DECODER | {"num_hidden_layers": 10, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8},
    "gpt_neo": {
        "hidden_size": 32, "num_layers": 10, "attention_types": [[["global", "local"], 5]], "num_heads": 4,
        "vocab_size": 99,
    },
    "gptj": _GPT | {"rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "bloom": _GPT,
    "mpt": {"d_model": 32, "n_layers": 9, "n_heads": 4, "vocab_size": 99},
    "persimmon": _DECODER,
    "falcon_h1": _DECODER | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4},
    "electra": _ENCODER | {"embedding_size": 16},
    "convbert": _ENCODER | {"embedding_size": 32},
    "esm": _ENCODER | {"pad_token_id": 1, "mask_token_id": 2},
    "vit": _VISION,
    "dinov2": _VISION,
    "clip": {
        "text_config": _ENCODER | {"num_hidden_layers": 8}, "vision_config": _VISION, "projection_dim": 16,
    },
    "bart": _BOTH,
    "whisper": _BOTH | {"max_source_positions": 20, "num_mel_bins": 8},
    "mt5": _T5,
    "umt5": _T5,
}  # fmt: skip
# families whose layers share something, differ, or go by their number
WHOLE: dict[str, dict[str, Any]] = {
    "albert": _ENCODER | {"embedding_size": 16},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 9, "state_size": 4, "vocab_size": 99},
    "llama4_text": _DECODER
    | {"num_hidden_layers": 16, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
    "minimax": _DECODER | {"num_local_experts": 2},
    "swin": {
        "embed_dim": 8, "depths": [2, 6], "num_heads": [1, 1], "image_size": 32, "patch_size": 2, "window_size": 4,
    },
}  # fmt: skip


def program_of(family: str, mode: str, *, shortened: bool, tokens: int = 8, **changes: Any) -> TorchProgram:
    values = {"model_type": family} | (REPEATED | WHOLE)[family] | changes
    sizes = {"context": tokens} if mode == "decode" else {"sequence": tokens}
    if "image_size" in values or family == "whisper":
        sizes = {}
    return build_program(HfConfig("a", values, "a"), mode=mode, batch_size=BATCH, shortened=shortened, **sizes)  # type: ignore[arg-type]


def trace(program: TorchProgram, mode: str = "inference") -> Graph:
    return graph_from_program(program, batch_size=BATCH, training=mode == "training")


def assert_equal(repeated: Graph, whole: Graph) -> None:
    """The hash is what is promised; names, layers, batch axes, lifetimes and fixed dtypes decide predictions, too."""
    assert repeated.hash == whole.hash
    assert repeated.nodes == whole.nodes
    assert list(repeated.tensors.items()) == list(whole.tensors.items())
    assert (repeated.inputs, repeated.outputs) == (whole.inputs, whole.outputs)
    assert repeated.held == whole.held
    assert repeated == whole


@pytest.mark.parametrize(("family", "mode", "layers"), [("gemma2", "prefill", 9), ("bart", "training", 9)])
def test_a_repeated_graph_is_the_traced_one(family: str, mode: str, layers: int) -> None:
    changes = {} if family == "bart" else {"num_hidden_layers": layers}
    program = program_of(family, mode, shortened=True, **changes)
    assert program.repeat is not None
    assert_equal(trace(program, mode), trace(program_of(family, mode, shortened=False, **changes), mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", REPEATED)
def test_graphs_of_all_families_are_the_traced_ones(family: str, mode: str) -> None:
    try:
        whole = program_of(family, mode, shortened=False)
    except InputError:
        pytest.skip("it does not generate")
    program = program_of(family, mode, shortened=True)
    assert program.repeat is not None
    assert_equal(trace(program, mode), trace(whole, mode))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "cohere2", "stablelm", "starcoder2", "olmo2", "granite"])
@pytest.mark.parametrize("seed", range(4))
def test_graphs_of_random_configurations_are_the_traced_ones(family: str, seed: int) -> None:
    draw = random.Random(f"{family} {seed}")
    changes = {
        "num_hidden_layers": draw.randint(14, 23), "attention_bias": draw.choice([True, False]),
        "num_key_value_heads": draw.choice([1, 2, 4]), "sliding_window": draw.choice([3, 4096]),
        "tie_word_embeddings": draw.choice([True, False]), "attention_dropout": draw.choice([0.0, 0.1]),
        "attn_implementation": draw.choice(["eager", "sdpa"]),
    }  # fmt: skip
    mode, tokens = MODES[seed], draw.choice([1, 8, 13])
    program = program_of(family, mode, shortened=True, tokens=tokens, **changes)
    assert program.repeat is not None
    try:
        repeated = trace(program, mode)
    except UnequalError:
        # a window without types of layers: the cache of every layer is prepared, also of those left out
        assert (mode, family in {"stablelm", "starcoder2", "olmo2", "granite"}) == ("prefill", True)
        return
    assert_equal(repeated, trace(program_of(family, mode, shortened=False, tokens=tokens, **changes), mode))


def test_names_that_are_given_out_for_layers_left_out_prove_nothing() -> None:
    changes = {"num_hidden_layers": 8, "sliding_window": 3, "attn_implementation": "sdpa"}
    program = program_of("olmo2", "prefill", shortened=True, **changes)
    assert program.repeat is not None
    with pytest.raises(UnequalError, match="names of a kind of layer"):
        trace(program, "prefill")


@pytest.mark.slow
@pytest.mark.parametrize("family", WHOLE)
def test_families_whose_layers_are_not_equal_are_traced_whole(family: str) -> None:
    program = program_of(family, "inference", shortened=True)
    if program.repeat is not None:
        with pytest.raises(UnequalError):
            trace(program)


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ([0] * 12, [0, 9, 10, 11]),
        ([0, 1] * 8, 6),
        ([0, 0, 0, 0, 0, 1] * 10 + [0, 0], 10),
        ([0, 0, 1, 1, 1, 1, 1, 1, 1], 6),
        (list(range(9)), 9),
        ([0, 0, 0], 3),
    ],
    ids=str,
)
def test_layers_that_are_kept_show_each_kind_between_its_neighbours_twice(kinds: list[int], kept: Any) -> None:
    found = keep(kinds)
    assert found == kept if isinstance(kept, list) else len(found) == kept


# models that look as if their layers were equal


class Layer(torch.nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.linear = torch.nn.Linear(8, 8)
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x)) * self.scale + x


class Net(torch.nn.Module):
    layer: Any = Layer

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(layer_types=["full"] * 12)
        self.layers = torch.nn.ModuleList([self.layer(i) for i in range(12)])
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model(net: type) -> Any:
    with torch.device("meta"):
        return net().eval()


def toy(net: Any) -> TorchProgram:
    repeat = shorten(net)
    return TorchProgram("toy", net, (torch.empty(BATCH, 8, device="meta"),), repeat=repeat)


def whole_toy(net: Any) -> TorchProgram:
    return TorchProgram("toy", net, (torch.empty(BATCH, 8, device="meta"),))


def test_a_plain_model_is_repeated() -> None:
    program = toy(model(Net))
    assert program.repeat is not None
    assert len(program.module.layers) == 4
    assert [layer.layer_idx for layer in program.module.layers] == [0, 1, 2, 3]
    assert_equal(trace(program), trace(whole_toy(model(Net))))


class OddLayer(Layer):
    def forward(self, x: Any) -> Any:
        return self.linear(x) if self.layer_idx % 2 else torch.relu(self.linear(x))


class AliasedLayer(Layer):
    def forward(self, x: Any) -> Any:
        number = self.layer_idx
        return self.linear(x) if number > 5 else x


def _helped(layer: Any, x: Any) -> Any:
    return layer.linear(x) if layer.layer_idx == 7 else torch.relu(layer.linear(x))


class HelpedLayer(Layer):
    def forward(self, x: Any) -> Any:
        return _helped(self, x)


class CountingLayer(Layer):
    shared = SimpleNamespace(count=0)

    def forward(self, x: Any) -> Any:
        self.shared.count = (self.shared.count + 1) % 5
        return self.linear(x) if self.shared.count else torch.relu(self.linear(x))


class QueueLayer(Layer):
    seen: ClassVar[Any] = deque(maxlen=3)

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        self.seen.append(x)
        return x + self.seen[0]


class OddNet(Net):
    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 3 else torch.tanh(layer(x))
        return self.head(x)


class CountedNet(Net):
    def forward(self, x: Any) -> Any:
        done = 0
        for layer in self.layers:
            done += 1  # noqa: SIM113
            x = layer(x) if done != 7 else layer(x) * 2
        return self.head(x)


class TypedNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.order = ["a"] * 7 + ["b"] * 5

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = layer(x) if self.order[i] == "a" else torch.tanh(layer(x))
        return self.head(x)


class HalfNet(Net):
    def forward(self, x: Any) -> Any:
        for layer in self.layers[: len(self.layers) // 2]:
            x = layer(x)
        return self.head(x)


class AskingNet(Net):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x)) if layer.layer_idx == 7 else layer(x)
        return self.head(x)


class ZippedNet(Net):
    def forward(self, x: Any) -> Any:
        for layer, scale in zip(self.layers, range(12)):
            x = layer(x) * (2 if scale == 8 else 1)
        return self.head(x)


class TwiceNet(Net):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + len(self.layers)


class ListedNet(Net):
    def forward(self, x: Any) -> Any:
        for kind in self.config.layer_types:
            x = torch.relu(x) if kind else x
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def with_layer(layer: type) -> type:
    return type("Net", (Net,), {"layer": layer, "__module__": Net.__module__, "forward": Net.forward})


def test_what_goes_by_the_number_of_a_layer_is_traced_whole() -> None:
    for layer in (OddLayer, AliasedLayer, HelpedLayer, CountingLayer, QueueLayer):
        net = model(Net)
        net.layers = torch.nn.ModuleList([layer(i) for i in range(12)])
        assert shorten(net) is None, layer
    for net in (OddNet, CountedNet, TypedNet, HalfNet, AskingNet, ZippedNet, TwiceNet, ListedNet):
        assert shorten(model(net)) is None, net


def test_code_whose_source_is_not_at_hand_is_traced_whole() -> None:
    hidden: dict[str, Any] = {"Layer": Layer, "__name__": "hidden"}
    exec("class Hidden(Layer):\n    def forward(self, x):\n        return self.linear(x)", hidden)
    net = model(Net)
    net.layers = torch.nn.ModuleList([hidden["Hidden"](i) for i in range(12)])
    assert shorten(net) is None


def test_a_layer_with_another_attribute_is_kept() -> None:
    def changed() -> Any:
        net = model(Net)
        net.layers[5].scale = 3.0
        return net

    program = toy(changed())
    assert program.repeat is not None
    assert [layer.scale for layer in program.module.layers].count(3.0) == 1
    assert_equal(trace(program), trace(whole_toy(changed())))
    differing = model(Net)
    for i, layer in enumerate(differing.layers):
        layer.scale = float(i)
    assert shorten(differing) is None


def test_layers_that_share_a_part_or_have_a_function_of_their_own_are_kept() -> None:
    net = model(Net)
    net.layers[7].linear = net.layers[2].linear
    assert shorten(net) is None
    net = model(Net)
    for i, layer in enumerate(net.layers):
        layer.forward = lambda x, layer=layer, i=i: layer.linear(x) * i
    assert shorten(net) is None
    net = model(Net)
    for layer in net.layers:
        layer.register_forward_hook(lambda *_: None)
    assert shorten(net) is None


class SkippingNet(Net):
    """The last layers read what an early one made, as where keys and values are shared."""

    def forward(self, x: Any) -> Any:
        states: Any = ()
        for layer in self.layers:
            x = layer(x)
            states = (*states, x)
        return self.head(x + states[-3])


class CarryingNet(Net):
    """Each layer reads the one before the last."""

    def forward(self, x: Any) -> Any:
        before = last = x
        for layer in self.layers:
            before, last = last, layer(last + before)
        return self.head(last)


@pytest.mark.parametrize("net", [SkippingNet, CarryingNet])
def test_layers_that_are_read_from_afar_prove_nothing(net: type) -> None:
    program = toy(model(net))
    assert program.repeat is not None
    with pytest.raises(UnequalError):
        trace(program)


class SharingLayer(Layer):
    """The last layers have no weights for keys and read those of another layer."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__(layer_idx)
        self.kv_shared_layer_index = 8 if layer_idx > 8 else None
        self.keys = torch.nn.Linear(8, 8) if layer_idx <= 8 else None

    def forward(self, x: Any, cache: Any = None) -> Any:
        if self.keys is not None:
            cache[self.layer_idx] = self.keys(x)
        return self.linear(x) + cache[self.layer_idx if self.kv_shared_layer_index is None else 8]


class SharingNet(Net):
    layer = SharingLayer

    def forward(self, x: Any) -> Any:
        cache: dict[int, Any] = {}
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x)


def test_layers_that_share_keys_are_traced_whole() -> None:
    assert shorten(model(SharingNet)) is None


def test_each_check_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a graph is another: so the comparisons above would notice."""
    whole = trace(whole_toy(model(Net)))
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "_renumbered", lambda name, shift: name)
        with pytest.raises(UnequalError):
            trace(toy(model(Net)))
    with monkeypatch.context() as patch:
        patch.setattr(layer_calls.LayerCalls, "ends", lambda *_: frozenset({("behind", 0)}))
        assert trace(toy(model(Net))).held != whole.held
    with monkeypatch.context() as patch:
        # an attribute that is not described
        patch.setattr(module_of_layers, "_INTERNAL", module_of_layers._INTERNAL | {"scale"})
        net = model(Net)
        net.layers[5].scale = 0
        assert len(toy(net).module.layers) == 4


@pytest.mark.parametrize("error", [AssertionError("a name"), KeyError("add"), TypeError("none")])
def test_whatever_goes_wrong_while_repeating_means_the_whole_trace(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    program = program_of("bart", "training", shortened=True)
    monkeypatch.setattr(module_of_layers, "repeat", fail)
    assert program.repeat is not None
    with pytest.raises(UnequalError, match=type(error).__name__):
        program.repeat(None)
