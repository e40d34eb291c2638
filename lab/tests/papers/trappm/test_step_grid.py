import pytest

from lab.papers.dippm.grid import row_of_workload, workload_of_row
from lab.papers.dippm.sets import family_of
from lab.papers.trappm import step_grid

pytest.importorskip("torch")


def test_models_are_those_of_the_families_and_convnext():
    names = step_grid.names()
    assert len(names) == len(set(names))
    assert {family_of(f"timm:{name}") for name in names} >= {"resnet", "vit", "vgg", None}
    assert set(step_grid.CONVNEXT) <= set(names)


@pytest.mark.parametrize("name", ["resnet50", "vit_tiny_patch14_224", "swinv2_tiny_window8_256", "convnext_tiny"])
def test_settings_are_training_steps_each_once_and_the_same_again(name):
    rows = step_grid.settings(name)
    assert rows == step_grid.settings(name)
    assert len({workload_of_row(row).id for row in rows}) == len(rows) == step_grid.SETTINGS
    assert {row["mode"] for row in rows} == {"training"}
    assert {row["optimizer"] for row in rows} == set(step_grid.OPTIMIZERS)
    assert {row["dtype"] for row in rows} == set(step_grid.DTYPES)
    assert {row["input_shape"][1] for row in rows} <= set(step_grid.sides(name))


def test_a_workload_keeps_how_it_trains():
    for row in step_grid.settings("vgg11"):
        assert row_of_workload(workload_of_row(row)) == row


def test_a_plan_has_every_setting_of_a_model_once():
    groups = step_grid.PLAN.groups("vit_tiny_patch16_224")
    assert {spec for spec, _ in groups} == {f"timm:vit_tiny_patch16_224?img_size={side}" for side in (224, 256)}
    assert sum(len(own) for _, own in groups) == step_grid.SETTINGS
