from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.steps import make_step, weight_dtype
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.zoo import Built, image_inputs


def _workload(mode="inference", dtype="fp32", optimizer="", shape=(4,)):
    return Workload("synthetic:mlp?widths=4-3", 2, shape, dtype, mode, optimizer)


def test_training_weights_stay_in_single_precision():
    assert weight_dtype(_workload("training", "bf16")) is torch.float32
    assert weight_dtype(_workload("inference", "bf16")) is torch.bfloat16


def test_inference_is_repeatable_and_leaves_no_graph():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)).train()
    step = make_step(Built(model, image_inputs), _workload(), "cpu")
    first, second = step.run(), step.run()
    assert first.shape == (2, 3)
    assert torch.equal(first, second)
    assert not first.requires_grad


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_training_step_moves_the_weights_and_closing_frees_the_gradients(optimizer, dtype):
    model = torch.nn.Linear(4, 3)
    before = model.weight.detach().clone()
    step = make_step(Built(model, image_inputs), _workload("training", dtype, optimizer), "cpu")
    loss = step.run()
    assert loss.ndim == 0
    assert not loss.requires_grad
    assert not torch.equal(model.weight, before)
    assert model.weight.grad is not None
    step.close()
    assert model.weight.grad is None


def test_an_output_that_is_no_table_of_scores_is_trained_towards_zero():
    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return {"count": torch.tensor([1]), "boxes": self.scale * torch.ones_like(x)}

    model = Detector()
    step = make_step(Built(model, image_inputs), _workload("training", optimizer="sgd", shape=(3, 4)), "cpu")
    assert step.run().item() == pytest.approx(4.0)
    assert model.scale.item() < 2.0


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_images_are_laid_out_channels_last(mode):
    model, seen = torch.nn.Conv2d(3, 4, 3), []
    model.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    workload = replace(
        _workload(mode, optimizer="sgd" if mode == "training" else "", shape=(3, 8, 8)), channels_last=True
    )
    make_step(Built(model, image_inputs), workload, "cpu").run()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_only_tf32_lets_matrix_products_run_in_tf32():
    model = torch.nn.Linear(4, 4)
    try:
        make_step(Built(model, image_inputs), _workload(dtype="tf32"), "cpu")
        assert torch.backends.cuda.matmul.allow_tf32
        assert weight_dtype(_workload(dtype="tf32")) is torch.float32
    finally:
        make_step(Built(model, image_inputs), _workload(), "cpu")
    assert not torch.backends.cuda.matmul.allow_tf32
