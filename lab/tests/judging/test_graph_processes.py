"""Graph networks fitted by other processes: none twice, failures named."""

import pytest

from foretell.errors import DataError
from foretell.training.examples.samples import read_samples
from lab.judging.graph_fits import Arm, PlannedFit, arms_of
from lab.judging.graph_processes import Workspace, fit_side_by_side
from lab.judging.graph_set import read_graph_set
from small.small_store import write_store

pytest.importorskip("pyarrow")
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    store, cache = write_store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("cache")
    read_graph_set(read_samples(store, "h200", cache), store, "h200", cache)
    return Workspace(store, "h200", cache, tmp_path_factory.mktemp("kept"), seconds=0.01)


def test_what_fails_is_named_when_the_others_are_done_and_those_are_not_fitted_again(bench: Workspace) -> None:
    (fine,) = (PlannedFit(arm, "random", 0) for arm in arms_of("mlp"))
    messages: list[str] = []
    with pytest.raises(DataError, match=r"1 of 2 fits failed.*no-such-recipe"):
        fit_side_by_side([PlannedFit(Arm("none", "no-such-recipe"), "random", 0), fine], bench, 1, messages.append)
    assert {line.startswith("2 of 2: mlp, split by random, seed 0") for line in messages} == {True}
    before = fine.file(bench.folder).read_bytes()

    fit_side_by_side([fine], bench, 1, messages.append)
    assert fine.file(bench.folder).read_bytes() == before
