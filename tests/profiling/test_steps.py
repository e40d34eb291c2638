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
