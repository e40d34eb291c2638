import pytest

torch = pytest.importorskip("torch")

from foretell.errors import InputError, UnknownNameError
from foretell.optional import available
from foretell.profiling.campaign.plan import Part
from foretell.profiling.single import Request, build_from_zoo
from foretell.profiling.skeleton import Weights
from foretell.profiling.steps import make_step, weight_dtype
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.registry import ZOOS, build, load_zoo
from foretell.profiling.zoos.synthetic import FAMILIES

DOWNSCALING = "synthetic:unet?base=56&classes=2&convs=2-1-1-1&depth=3&rise=2&up=2"


def _run(workload: Workload, device: str = "meta"):
    built = build(workload.spec)
    Weights(built.model, cast_buffers=built.cast_buffers).place(device, weight_dtype(workload))
    step = make_step(built, workload, device)
    output = step.run()
    step.close()
    return output


@pytest.mark.parametrize("family", FAMILIES)
def test_random_networks_run_on_their_own_inputs(family):
    part = Part("random", 1.0, ("synthetic",), models=2, families=(family,))
    for entry in load_zoo("synthetic").entries(part, seed=7):
        output = _run(Workload(entry.spec, 2, entry.input_shape, "fp16"))
        assert output.shape[0] == 2
        assert output.dtype == torch.float16


def test_the_downscaling_network_is_the_published_one():
    part = Part("random", 1.0, ("synthetic",))
    assert DOWNSCALING in {entry.spec for entry in load_zoo("synthetic").entries(part, seed=1)}
    built = build(DOWNSCALING)
    assert sum(parameter.numel() for parameter in built.model.parameters()) == 3_525_650, "as the thesis counts them"
    assert _run(Workload(DOWNSCALING, 2, (3, 96, 128), "fp32")).shape == (2, 2, 96, 128)


def test_an_unknown_network_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'lenet'"):
        build("synthetic:lennet")
    with pytest.raises(UnknownNameError, match="Did you mean 'lenet'"):
        build_from_zoo(Request("synthetic:lennet"))


@pytest.mark.parametrize("name", ["cnn", "chain", "operators", "recurrent", "residual", "transformer"])
def test_every_network_without_arguments_is_refused_with_an_example(name):
    with pytest.raises(InputError, match=rf"For example: synthetic:{name}\?"):
        build(f"synthetic:{name}")


@pytest.mark.parametrize("spec", ["synthetic:mlp", "synthetic:mlp?width=8-4", "synthetic:mlp?widths=8-a"])
def test_a_network_that_lacks_an_argument_is_refused_with_an_example(spec):
    with pytest.raises(InputError, match=r"For example: synthetic:mlp\?act=.*widths="):
        build(spec)
    with pytest.raises(InputError, match="For example"):
        build_from_zoo(Request(spec))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_training_step_changes_the_weights(optimizer, dtype):
    workload = Workload("synthetic:lenet?scale=2", 4, (1, 28, 28), dtype, "training", optimizer)
    built = build(workload.spec)
    Weights(built.model, cast_buffers=True).place("cpu", weight_dtype(workload))
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    step = make_step(built, workload, "cpu")
    assert torch.isfinite(step.run())
    assert all(not torch.equal(a, b) for a, b in zip(before, built.model.parameters()))
    step.close()
    assert all(parameter.grad is None for parameter in built.model.parameters())


def test_every_zoo_can_be_loaded_or_names_its_extra():
    assert all(hasattr(load_zoo(name), "entries") for name in ZOOS)


@pytest.mark.skipif(not available("timm"), reason="timm is an extra: pip install 'foretell[vision]'")
def test_torchvision_and_timm_list_and_build():
    part = Part("vision", 1.0, ("timm", "torchvision"))
    timm_entries = load_zoo("timm").entries(part, 1)
    assert len(timm_entries) > 1300
    assert len({entry.family for entry in timm_entries}) > 90
    vision = {entry.spec: entry for entry in load_zoo("torchvision").entries(part, 1)}
    assert vision["torchvision:r3d_18"].input_shape == (3, 16, 112, 112)
    assert _run(Workload("timm:resnet18", 2, (3, 64, 64), "bf16")).shape == (2, 1000)
    assert _run(Workload("torchvision:alexnet", 2, (3, 224, 224), "fp16")).shape == (2, 1000)


TINY = "hidden_size=64&num_hidden_layers=2&num_attention_heads=4&intermediate_size=128&vocab_size=100"


@pytest.mark.skipif(not available("transformers"), reason="transformers is an extra: pip install 'foretell[hf]'")
def test_language_models_prefill_and_decode():
    spec = f"hf:llama?{TINY}&num_key_value_heads=2"
    assert _run(Workload(spec, 2, (16,), "bf16", "prefill"), "cpu").logits.shape == (2, 1, 100)
    workload = Workload(spec, 2, (16,), "bf16", "decode")
    built = build(spec)
    Weights(built.model, cast_buffers=False).place("cpu", torch.bfloat16)
    step = make_step(built, workload, "cpu")
    first, second = step.run(), step.run()
    assert first.past_key_values.get_seq_length() == second.past_key_values.get_seq_length() == 17
    assert torch.equal(first.logits, second.logits)


@pytest.mark.skipif(not available("transformers"), reason="transformers is an extra: pip install 'foretell[hf]'")
def test_encoders_are_listed_and_run():
    entries = load_zoo("hf").entries(Part("encoders", 1.0, ("hf",), models=20), 1)
    assert {"hf-bert", "hf-deberta-v2", "hf-t5", "hf-whisper", "hf-vit"} <= {entry.family for entry in entries}
    assert _run(Workload(f"hf:bert?{TINY}", 2, (16,), "fp16"), "cpu").last_hidden_state.shape == (2, 16, 64)
