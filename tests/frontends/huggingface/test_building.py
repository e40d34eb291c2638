import json
from collections import Counter
from pathlib import Path

import pytest

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends.huggingface.building import build_program
from foretell.frontends.huggingface.configs import known_models, load_config
from foretell.frontends.torch.program import export_error

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

# torch 2.13 and transformers 5 warn about their own code; ours stays strict
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]

WIDTHS = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
ENCODER = {**WIDTHS, "vocab_size": 1000}
DECODER = {**ENCODER, "num_key_value_heads": 2, "tie_word_embeddings": False}
BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 1000, "pad_token_id": 1,
}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
VISION = {**WIDTHS, "image_size": 64, "patch_size": 16}
MLA = {
    **ENCODER, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}  # fmt: skip
ATTENTION = "aten.scaled_dot_product_attention.default"
EXPERTS = "transformers.grouped_mm_fallback.default"


@pytest.fixture
def config(tmp_path):
    def write(model_type=None, **values):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": model_type, **values} if model_type else values))
        return str(path)

    return write


def nodes(program):
    with torch.no_grad():
        exported = torch.export.export(program.module, program.args, dict(program.kwargs), strict=False)
    return [node for node in exported.graph.nodes if node.op == "call_function"]


def counts(graph_nodes):
    return Counter(str(node.target) for node in graph_nodes)


def shapes(program):
    return {name: tuple(tensor.shape) for name, tensor in program.kwargs.items()}


def parameters(program):
    return sum(parameter.numel() for parameter in program.module.parameters())


def test_encoder_has_one_unmasked_attention_a_layer(config):
    program = build_program(config("bert", **ENCODER, architectures=["BertForMaskedLM"]), batch_size=3, sequence=16)
    attentions = [node for node in nodes(program) if str(node.target) == ATTENTION]
    assert shapes(program) == {"input_ids": (3, 16)}
    assert len(attentions) == 2
    assert all(len(node.args) == 3 and not node.kwargs.get("is_causal") for node in attentions)


def test_prefill_is_causal_grouped_and_gives_the_last_logits_and_the_cache(config):
    program = build_program(config("llama", **DECODER), mode="prefill", batch_size=2, sequence=16, dtype="bf16")
    with torch.no_grad():
        exported = torch.export.export(program.module, program.args, dict(program.kwargs), strict=False)
    attentions = [node for node in exported.graph.nodes if str(node.target) == ATTENTION]
    outputs = {str(node): tuple(node.meta["val"].shape) for node in exported.graph.output_node().args[0]}
    assert len(attentions) == 2
    assert all(node.kwargs["enable_gqa"] and node.args[5] for node in attentions)
    assert sorted(outputs.values()) == [(2, 1, 1000), *[(2, 2, 16, 16)] * 4]
    assert attentions[0].meta["val"].dtype == torch.bfloat16


def test_decode_reads_a_cache_of_the_key_value_heads(config):
    program = build_program(config("llama", **DECODER), mode="decode", batch_size=2, context=10)
    operators = nodes(program)
    keys = [node.args[1].meta["val"].shape for node in operators if str(node.target) == ATTENTION]
    assert shapes(program)["input_ids"] == (2, 1)
    assert [shape for name, shape in shapes(program).items() if name != "input_ids"] == [(2, 2, 10, 16)] * 4
    assert keys == [torch.Size([2, 2, 11, 16])] * 2
    paths = [list(node.meta["nn_module_stack"].values())[-1][0] for node in operators if str(node.target) == ATTENTION]
    assert paths == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_decode_keeps_windows_and_latents_as_small_as_they_are(config):
    window = build_program(config("mistral", **DECODER, sliding_window=8), mode="decode", context=20)
    latent = build_program(config("deepseek_v2", **MLA), mode="decode", context=20)
    assert shapes(window)["past_0_keys"] == (1, 2, 7, 16)
    cached = sum(tensor.numel() for name, tensor in latent.kwargs.items() if name.startswith("past_0"))
    assert cached == 20 * (32 + 8)


@pytest.mark.parametrize(
    ("model_type", "dtype", "values"),
    [
        ("mixtral", "fp32", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        (
            "qwen3_moe",
            "bf16",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 16},
        ),
    ],
)
def test_all_experts_count_as_parameters_and_only_active_ones_cost(config, model_type, dtype, values):
    program = build_program(config(model_type, **DECODER, **values), batch_size=2, sequence=16, dtype=dtype)
    products = [node for node in nodes(program) if str(node.target) == EXPERTS]
    experts = values.get("num_local_experts") or values["num_experts"]
    assert [tuple(node.meta["val"].shape) for node in products] == [(2 * 16 * 2, 256), (2 * 16 * 2, 64)] * 2
    assert [tuple(node.args[1].meta["val"].shape) for node in products[:2]] == [(experts, 64, 256), (experts, 128, 64)]
    expert_parameters = sum(p.numel() for name, p in program.module.named_parameters() if ".experts." in name)
    assert expert_parameters == 2 * experts * 3 * 64 * 128


def test_experts_in_a_loop_are_refused(config):
    with pytest.raises(ModelError, match="jetmoe"):
        build_program(config("jetmoe", **DECODER))


def test_encoder_decoder_decodes_from_both_caches(config):
    spec = config("bart", **BART)
    full_program = build_program(spec, sequence=12, context=5)
    step = build_program(spec, mode="decode", sequence=12, context=5)
    assert shapes(full_program) == {"input_ids": (1, 12), "decoder_input_ids": (1, 5)}
    assert shapes(step)["past_0_keys"] == (1, 4, 5, 16)
    assert shapes(step)["cross_0_keys"] == (1, 4, 12, 16)
    operators = counts(nodes(step))
    assert operators[ATTENTION] == 4
    assert operators["aten.linear.default"] == 2 * (4 + 2 + 2) + 1  # the encoder does not run again


def test_an_untied_t5_has_a_head_of_its_own(config):
    tied = parameters(build_program(config("t5", **T5)))
    untied = parameters(build_program(config("t5", **T5, tie_word_embeddings=False)))
    assert untied - tied == 64 * 1000


def test_scan_of_mamba_is_one_operator_at_any_length(config):
    spec = config("mamba", hidden_size=64, num_hidden_layers=2, vocab_size=1000)
    short, long = (nodes(build_program(spec, mode="prefill", sequence=length)) for length in (8, 32))
    assert counts(short) == counts(long)
    assert counts(short)["foretell.selective_scan.default"] == 2


def test_training_trains_and_never_drops_a_layer(config):
    values = {**WIDTHS, "ffn_dim": 128, "vocab_size": 1000, "word_embed_proj_dim": 64, "layerdrop": 0.5}
    program = build_program(config("opt", **values), mode="training", sequence=8)
    assert program.module.training
    assert counts(nodes(program))[ATTENTION] == 2


@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        ("vit", VISION, {"pixel_values": (2, 3, 64, 64)}),
        ("whisper", {**BART, "num_mel_bins": 80}, {"input_features": (2, 80, 3000), "decoder_input_ids": (2, 16)}),
        ("wav2vec2", ENCODER, {"input_values": (2, 16)}),
        (
            "clip",
            {"text_config": {**ENCODER, "max_position_embeddings": 77}, "vision_config": VISION},
            {"input_ids": (2, 16), "pixel_values": (2, 3, 64, 64)},
        ),
        ("videomae", {**VISION, "num_frames": 4}, {"pixel_values": (2, 4, 3, 64, 64)}),
    ],
)
def test_inputs_fit_the_model(config, model_type, values, expected):
    assert shapes(build_program(config(model_type, **values), batch_size=2, sequence=16)) == expected


def test_an_image_of_another_size_is_resampled(config):
    program = build_program(config("vit", **VISION), image=(3, 96, 96))
    assert shapes(program) == {"pixel_values": (1, 3, 96, 96)}
    assert any("upsample" in str(node.target) for node in nodes(program))


@pytest.mark.parametrize(
    ("ident", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("bert-base-uncased", 109_514_298),
        ("gpt2", 124_439_808),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224),
        ("google/flan-t5-base", 247_577_856),
        ("openai/whisper-small", 241_734_912),
        ("google/vit-base-patch16-224", 86_567_656),
    ],
)
def test_parameters_of_known_models_are_exact(ident, expected):
    program = build_program(f"hf:{ident}")
    assert parameters(program) == expected
    assert all(parameter.is_meta for parameter in program.module.parameters())


def test_every_known_config_resolves_by_name_and_alias_in_any_case():
    assert len(known_models()) > 50
    for name in known_models():
        assert load_config(f"hf:{name.upper()}").values["model_type"]
    assert load_config("hf:gpt2").values == load_config("hf:openai-community/gpt2").values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "as JSON"),
        ("[1, 2]", "not an object"),
        ("{}", "neither model_type nor architectures"),
        ('{"model_type": "lama"}', "Did you mean 'llama'"),
        ('{"model_type": "bert", "hidden_size": -1}', "hidden_size = -1"),
        ('{"model_type": "bert", "hidden_size": "big"}', "hidden_size = 'big'"),
        ('{"model_type": "llama", "num_hidden_layers": 1000000000}', "num_hidden_layers"),
        ('{"model_type": "bert", "hidden_size": 65, "num_attention_heads": 4}', "does not make a model"),
        ('{"model_type": "bert", "hidden_act": "no_such"}', "does not make a model"),
        ('{"model_type": "whisper", "auto_map": 7}', "does not make a model"),
        ('{"model_type": ["bert"]}', "Unknown model_type"),
        ("[" * 100_000, "as JSON"),
        ("\xff\xfe", "as JSON"),
    ],
)
def test_a_bad_config_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=message) as caught:
        build_program(str(path))
    assert "\n" not in str(caught.value)


def test_code_that_comes_with_a_model_runs_only_when_trusted(config, tmp_path):
    canary = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(canary)!r}, 'w')")
    spec = config("mine", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    with pytest.raises(UntrustedModelError, match="--trust"):
        build_program(spec)
    assert not canary.exists()


def test_a_config_cannot_choose_kernels_from_the_hub(config):
    spec = config("llama", **DECODER, attn_implementation="someone/kernel", _attn_implementation="someone/kernel")
    assert build_program(spec).module.config._attn_implementation == "sdpa"


def test_quantisation_is_ignored_and_noted(config):
    program = build_program(config("llama", **DECODER, quantization_config={"quant_method": "gptq", "bits": 4}))
    assert "quantization_config" in program.notes[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:gtp2", "Did you mean 'gpt2'"),
        ("hf:a b/c", "not a Hugging Face ID"),
        ("no/such/config.json", "no such file"),
    ],
)
def test_an_unknown_spec_says_what_to_do(spec, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=message):
        build_program(spec)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "decode"}, "needs a model that generates"),
        ({"mode": "predict"}, "Unknown mode"),
        ({"dtype": "int3"}, "Unknown dtype"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"sequence": 513}, "512 positions"),
    ],
)
def test_impossible_inputs_are_refused(config, options, message):
    with pytest.raises(InputError, match=message):
        build_program(config("bert", **ENCODER), **options)


def test_a_folder_is_read_and_an_empty_one_refused(config, tmp_path):
    config("bert", **ENCODER)
    assert build_program(str(tmp_path)).name == tmp_path.name
    Path(tmp_path, "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        build_program(str(tmp_path))


def test_a_failed_export_is_one_line(config, capfd):
    program = build_program(config("longformer", **ENCODER, attention_window=8), sequence=16)
    with pytest.raises(Exception, match="data-dependent") as caught:
        nodes(program)
    assert str(export_error(program, caught.value)).startswith(
        f"Cannot export {program.name}: its forward pass depends"
    )


@pytest.mark.parametrize("chosen", ["eager", "sdpa"])
def test_a_config_chooses_between_eager_and_fused_attention(config, chosen):
    program = build_program(config("llama", **DECODER, attn_implementation=chosen))
    assert program.module.config._attn_implementation == chosen
    assert not program.notes


def test_another_implementation_of_attention_is_ignored_and_noted(config):
    program = build_program(config("llama", **DECODER, attn_implementation="flash_attention_2"))
    assert program.module.config._attn_implementation == "sdpa"
    assert "flash_attention_2" in program.notes[0]
