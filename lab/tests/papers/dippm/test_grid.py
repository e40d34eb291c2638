from lab.papers.dippm.grid import MOST, SETTINGS, models, settings
from lab.papers.dippm.sets import FAMILIES, family_of

NAMES = [f"resnet{depth}" for depth in range(10, 60)] + ["vit_tiny_patch14_224", "vgg11", "levit_128"]


def test_models_are_spread_over_a_family_and_others_are_left_out():
    chosen = models(NAMES)
    assert sum(name.startswith("resnet") for name in chosen) == MOST
    assert {"vit_tiny_patch14_224", "vgg11"} <= set(chosen)
    assert "levit_128" not in chosen
    assert {family_of(f"timm:{name}") for name in chosen} <= set(FAMILIES)


def test_settings_are_distinct_few_enough_and_the_same_again():
    rows = settings("resnet50")
    assert len(rows) == len({(row["batch_size"], *row["input_shape"]) for row in rows}) == SETTINGS
    assert rows == settings("resnet50")
    assert all(row["batch_size"] * row["input_shape"][1] ** 2 <= 64 * 224**2 for row in rows)


def test_what_is_built_for_one_resolution_says_so_in_its_spec():
    assert {row["spec"] for row in settings("vit_tiny_patch14_224")} == {
        f"timm:vit_tiny_patch14_224?img_size={side}" for side in (224, 252, 280)
    }
