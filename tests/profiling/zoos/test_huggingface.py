import pytest

pytest.importorskip("torch")

from foretell.optional import available
from foretell.profiling.campaign.plan import Part
from foretell.profiling.skeleton import Weights
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.huggingface import CausalZoo, EncoderZoo
from foretell.profiling.zoos.registry import build

# importing transformers here would come before torchvision is repaired
pytestmark = pytest.mark.skipif(
    not available("transformers"), reason="transformers is an extra: pip install 'foretell[hf]'"
)


@pytest.mark.parametrize("zoo", [EncoderZoo(), CausalZoo()])
def test_published_models_stay_and_the_seed_decides_the_random_ones(zoo):
    part = Part("text", 1.0, ("hf",), models=8)
    published = zoo.entries(Part("text", 1.0, ("hf",)), seed=1)
    first, second = zoo.entries(part, seed=1), zoo.entries(part, seed=2)
    assert first == zoo.entries(part, seed=1)
    assert first[: len(published)] == second[: len(published)] == published
    assert first[len(published) :] != second[len(published) :]


def test_an_entry_has_either_a_shape_or_a_longest_sequence():
    entries = EncoderZoo().entries(Part("encoders", 1.0, ("hf",), models=30), seed=5)
    assert all(bool(entry.input_shape) != bool(entry.max_sequence) for entry in entries)
    assert all(entry.max_sequence <= 4096 for entry in entries)
    families = ("hf-whisper", "hf-wav2vec2")
    audio = EncoderZoo().entries(Part("audio", 1.0, ("hf",), families=families), seed=5)
    assert {entry.family for entry in audio} == set(families)
    assert {entry.input_shape[-1] for entry in audio} == {3000, 32000}


def test_the_estimate_counts_the_weights_of_a_model_with_untied_embeddings():
    entries = CausalZoo().entries(Part("llm", 1.0, ("llm",), families=("llm-gpt_neox",)), seed=1)
    smallest = min(entries, key=lambda entry: entry.parameters)
    built = build(smallest.spec)
    counted = sum(parameter.numel() for parameter in built.model.parameters())
    assert counted == pytest.approx(smallest.parameters, rel=0.05)
    assert not built.cast_buffers


def test_a_plan_may_name_any_configuration():
    spec = "hf:clip?image_size=64&patch_size=32"
    part = Part("clip", 1.0, ("hf",), specs=(spec, "timm:resnet50_clip"))
    entry = next(entry for entry in EncoderZoo().entries(part, seed=1) if entry.spec == spec)
    assert (entry.family, entry.input_shape) == ("hf-clip", (3, 64, 64))
    assert not any(entry.spec.startswith("timm") for entry in EncoderZoo().entries(part, seed=1))


@pytest.mark.parametrize("vision", ["patch_size=32", "vision=resnet18"])
def test_both_towers_of_clip_run_as_one_model(vision):
    import torch

    workload = Workload(f"hf:clip?image_size=64&{vision}", 3, (3, 64, 64), "fp32")
    if "resnet" in vision and not available("timm"):
        pytest.skip("timm is an extra: pip install 'foretell[vision]'")
    built = build(workload.spec)
    inputs = dict(built.make_inputs(workload, "cpu", torch.float32).kwargs)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "pixel_values": (3, 3, 64, 64), "input_ids": (3, 77),
    }  # fmt: skip
    Weights(built.model, cast_buffers=built.cast_buffers).place("cpu", torch.float32)
    output = built.model(**inputs)
    assert getattr(output, "logits_per_text", output).shape == (3, 3)
