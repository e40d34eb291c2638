import inspect

import pytest

from foretell.frontends.huggingface.tracing import as_if_run, bind_forward, cache_tensors, fill_cache

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def test_a_bound_forward_takes_the_named_tensors_and_returns_each_new_one_once():
    model = torch.nn.Linear(3, 4, device="meta")
    sent = torch.zeros(2, 3, device="meta")

    def call(original, tensors):
        output = original(tensors["x"])
        return {"y": output, "again": [output, tensors["x"], output + 1], "text": "dropped"}

    bind_forward(model, {"x": sent}, call)
    assert list(inspect.signature(model.forward).parameters) == ["x"]
    assert {name: tuple(t.shape) for name, t in model(x=sent).items()} == {"y": (2, 4), "again.2": (2, 4)}


def test_filling_a_cache_leaves_the_template_as_it_was():
    template = transformers.DynamicCache()
    for layer in range(2):
        template.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
    cached = cache_tensors(template)
    assert list(cached) == ["past_0_keys", "past_0_values", "past_1_keys", "past_1_values"]
    longer = torch.ones(1, 2, 7, 4)
    filled = cache_tensors(fill_cache(template, {"past_1_keys": longer}))
    assert filled["past_1_keys"] is longer
    assert filled["past_0_keys"] is cached["past_0_keys"]
    assert cache_tensors(template)["past_1_keys"] is cached["past_1_keys"]


def test_questions_about_values_are_answered_on_meta_tensors_only_while_running():
    x = torch.zeros(3, device="meta")
    before = torch.isinf, torch.rand
    with as_if_run(torch.nn.Linear(1, 1, device="meta")):
        assert not torch.isinf(x).any()
        assert torch.isfinite(x).all()
        assert torch.rand([]) == 1.0
        assert torch.rand(2, device="meta").shape == (2,)
        assert torch.where(torch.isinf(x), x, x).shape == (3,)
    assert (torch.isinf, torch.rand) == before
