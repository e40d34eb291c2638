"""A plan of many predictions: what it means, and one sentence for each of its mistakes."""

from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.workflows.many.plan import check_many_plan, read_many_plan

SPACE = "def network(number):\n    raise SystemExit('a plan is checked without running this')\n"


def write(folder: Path, text: str) -> Path:
    (folder / "space.py").write_text(SPACE)
    (folder / "b.onnx").write_bytes(b"b\0")
    (folder / "a.onnx").write_bytes(b"a")
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def test_files_specs_and_a_list_come_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("b.onnx\n\ntimm:resnet18\n")
    plan = read_many_plan(
        write(tmp_path, '[models]\nlist = "names.txt"\nfiles = ["*.onnx"]\nspecs = ["timm:resnet50"]\n')
    )
    folder = tmp_path.resolve()
    assert plan.names == (f"{folder}/a.onnx", f"{folder}/b.onnx", "timm:resnet50", f"{folder}/b.onnx", "timm:resnet18")
    assert plan.combinations == ({"device": "h200", "batch_size": 1, "dtype": "fp32", "slice": None},)


def test_every_combination_of_the_lists_is_predicted(tmp_path: Path) -> None:
    text = (
        '[models]\nspace = "space.py:network"\ncount = 25\n[options]\ndevices = ["l4", "h200"]\nbatch_sizes = [1, 8]\n'
    )
    text += 'dtypes = ["fp16"]\nmode = "training"\noptimizer = "sgd"\ninput = "3x8x8"\n[shards]\nmodels = 10\n'
    plan = read_many_plan(write(tmp_path, text))
    assert plan.space == f"{tmp_path.resolve()}/space.py:network"
    assert [(one["device"], one["batch_size"]) for one in plan.combinations] == [
        ("l4", 1), ("l4", 8), ("h200", 1), ("h200", 8),
    ]  # fmt: skip
    shared = {"dtype": "fp16", "mode": "training", "optimizer": "sgd", "input_shape": "3x8x8", "slice": None}
    assert all(shared.items() <= one.items() for one in plan.combinations)
    assert (plan.models, plan.shards, [plan.models_of(shard) for shard in range(3)]) == (
        25, 3, [(0, 10), (10, 20), (20, 25)],
    )  # fmt: skip


def test_each_mistake_is_one_sentence_and_all_of_them_are_told(tmp_path: Path) -> None:
    text = 'model = 1\n[models]\nfiles = ["*.pt"]\nspace = "space.py:nets"\ncounts = 3\n'
    text += '[options]\ndevices = ["h2000"]\nbatch_sizes = []\ndtype = "fp16"\nchannels_last = "yes"\n'
    text += "[shards]\nmodels = 0\n"
    plan, mistakes = check_many_plan(write(tmp_path, text))
    assert plan is None
    for words in (
        "unknown key 'model'", "no file matches '*.pt'", "no function 'nets'. It has: network", "unknown key 'counts'",
        "batch_sizes must be a list of numbers", "unknown key 'dtype'", "channels_last is 'yes'",
        "models is 0; it must be an integer of at least 1",
    ):  # fmt: skip
        assert sum(words in mistake for mistake in mistakes) == 1, words
    assert len(mistakes) == 8


def test_what_predict_would_refuse_in_every_model_is_a_mistake_of_the_plan(tmp_path: Path) -> None:
    head = '[models]\nspecs = ["timm:resnet18"]\n[options]\n'
    _, mistakes = check_many_plan(write(tmp_path, head + 'devices = ["h2000", "mi300x"]\ndtypes = ["tf32", "fp99"]\n'))
    assert len(mistakes) == 3
    assert any("h2000" in mistake for mistake in mistakes)
    with pytest.raises(InputError, match=r"h2000.*\(and 2 more\)"):
        read_many_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("", "names no models"),
        ('space = "space.py:network"', "needs count"),
        ("count = 3", "give space as well"),
        ('space = "space.py"\ncount = 1', "write a file and a function"),
        ('space = "none.py:network"\ncount = 1', "cannot read"),
        ('space = "b.onnx:network"\ncount = 1', "is not Python"),
        ('specs = ["a"]\nspace = "space.py:network"\ncount = 1', "write two plans"),
        ('list = "none.txt"', "cannot read the list"),
        ('specs = "a"', "must be a list of texts"),
    ],
)
def test_models_that_make_no_sense(tmp_path: Path, models: str, said: str) -> None:
    _, mistakes = check_many_plan(write(tmp_path, f"[models]\n{models}\n"))
    assert len(mistakes) == 1
    assert said in mistakes[0]


def test_a_file_that_is_absent_or_not_toml_is_one_mistake(tmp_path: Path) -> None:
    assert len(check_many_plan(tmp_path / "absent.toml")[1]) == 1
    assert "is not TOML" in check_many_plan(write(tmp_path, "[models"))[1][0]


def test_a_shard_has_a_bound(tmp_path: Path) -> None:
    text = '[models]\nspecs = ["a"]\n[options]\nbatch_sizes = [1, 2]\n[shards]\nmodels = 500001\n'
    assert "has more than 1,000,000 predictions" in check_many_plan(write(tmp_path, text))[1][0]


def test_the_identity_changes_with_everything_that_predictions_depend_on(tmp_path: Path) -> None:
    text = '[models]\nfiles = ["*.onnx"]\n'
    first = read_many_plan(write(tmp_path, text)).identity
    assert read_many_plan(tmp_path / "plan.toml").identity == first
    (tmp_path / "a.onnx").write_bytes(b"longer")
    assert read_many_plan(tmp_path / "plan.toml").identity != first
    assert read_many_plan(write(tmp_path, text + '[options]\ndtypes = ["fp16"]\n')).identity != first
    space = '[models]\nspace = "space.py:network"\ncount = 3\n'
    second = read_many_plan(write(tmp_path, space)).identity
    (tmp_path / "space.py").write_text(SPACE + "# changed\n")
    assert read_many_plan(tmp_path / "plan.toml").identity != second
