"""Files of jobs and clusters: what they say, and one clear line where they say nonsense."""

from pathlib import Path

import pytest

from foretell.errors import DataError
from foretell.scheduling.inputs.cluster_file import read_cluster
from foretell.scheduling.inputs.job_file import read_jobs

JOB = '[[job]]\nname = "a"\nalone_ms = 5\nsteps = 10\n'


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return path


def test_a_job_of_numbers_and_one_of_a_model(tmp_path: Path) -> None:
    text = JOB + 'sm_share = 0.5\nmax_slowdown = 1.5\ncount = 3\nevery_s = 2.5\n[[job]]\nname = "b"\nmodel = "x.onnx"\n'
    text += 'seconds = 60\nbatch_size = 8\nafter = ["a"]\n[[together]]\njobs = ["b", "a"]\nslowdowns = [1.2, 2]\n'
    found = read_jobs(file(tmp_path, text))
    one, two = found.jobs
    assert (one.steps, one.seconds, one.count, one.every_s, one.max_slowdown) == (10, None, 3, 2.5, 1.5)
    assert dict(one.numbers) == {"alone_ms": 5.0, "sm_share": 0.5}
    assert (two.model, two.seconds, dict(two.options), two.after) == ("x.onnx", 60, {"batch_size": 8}, ("a",))
    assert (one.gpus, one.percentage) == (1, None)
    assert found.together == {("mps", ("a", "b")): (2.0, 1.2)}


BAD_JOBS = {
    "no job": ("", "there is no job"),
    "not TOML": ("[[job", "is not TOML"),
    "a table instead of a list": ("[job]\nname = 1", "it must be a list of tables"),
    "unknown key": (JOB + "stepps = 3\n", "Did you mean 'steps'"),
    "no name": ("[[job]]\nalone_ms = 5\nsteps = 1", "name is absent"),
    "two of one name": (JOB + JOB, "two jobs are called 'a'"),
    "no work": ('[[job]]\nname = "a"\nalone_ms = 5', "needs steps or seconds"),
    "two kinds of work": (JOB + "seconds = 5\n", "needs steps or seconds"),
    "neither model nor numbers": ('[[job]]\nname = "a"\nsteps = 5', "neither a model nor alone_ms"),
    "both": (JOB + 'model = "x.onnx"', "a model and alone_ms"),
    "an option without a model": (JOB + "batch_size = 4", "belongs to a model"),
    "negative arrival": (JOB + "arrival_s = -1", "at least 0"),
    "negative work": (JOB.replace("10", "-10"), "above 0"),
    "NaN": (JOB + "arrival_s = nan", "at least 0"),
    "endless": (JOB.replace("10", "inf"), "above 0"),
    "a share above 1": (JOB + "occupancy = 45", "between 0 and 1"),
    "a limit below 1": (JOB + "max_slowdown = 0.5", "at least 1"),
    "a cycle": (JOB + 'after = ["b"]\n' + JOB.replace('"a"', '"b"') + 'after = ["a"]', "wait for each other"),
    "after itself": (JOB + 'after = ["a"]', "wait for each other"),
    "after nobody": (JOB + 'after = ["c"]', "comes after 'c'"),
    "after, at a time": (JOB + JOB.replace('"a"', '"b"') + 'after = ["a"]\narrival_s = 3', "leave out"),
    "no list": (JOB + 'after = "b"', "a list of texts"),
    "count 0": (JOB + "count = 0", "at least 1"),
    "too many": (JOB + "count = 99999999", "more than"),
    "together with a stranger": (JOB + '[[together]]\njobs = ["a", "z"]\nslowdowns = [1, 2]', "no job 'z'"),
    "a slowdown missing": (JOB + '[[together]]\njobs = ["a", "a"]\nslowdowns = [1]', "one slowdown above 0 for each"),
    "a slowdown that is NaN": (JOB + '[[together]]\njobs = ["a", "a"]\nslowdowns = [1, nan]', "one slowdown above 0"),
    "unknown sharing": (JOB + '[[together]]\njobs = ["a", "a"]\nslowdowns = [1, 2]\nshare = "mpss"', "mean 'mps'"),
    "unknown trace": ('[arrivals]\ntrace = "phily"\n[[job]]\nname = "a"\nalone_ms = 5', "Did you mean 'philly'"),
    "a trace without a file": ('[arrivals]\ntrace = "philly"\n[[job]]\nname = "a"\nalone_ms = 5', "need file"),
    "steps and a trace": ('[arrivals]\ntrace = "poisson"\n' + JOB, "unknown key 'steps'"),
    "no GPU": (JOB + "gpus = 0", "gpus is 0; it must be an integer of at least 1"),
    "half a GPU": (JOB + "gpus = 0.5", "it must be an integer of at least 1"),
    "a percentage above 100": (JOB + "percentage = 120", "percentage is 120; it must be above 0 and at most 100"),
    "a percentage of 0": (JOB + "percentage = 0", "above 0"),
    "a percentage of several GPUs": (JOB + "gpus = 2\npercentage = 50", "leave out percentage"),
    "no load": ('[arrivals]\ntrace = "poisson"\nload = 0\n[[job]]\nname = "a"\nalone_ms = 5', "above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_JOBS)
def test_bad_jobs_are_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    text, expected = BAD_JOBS[name]
    with pytest.raises(DataError) as caught:
        read_jobs(file(tmp_path, text))
    assert expected in str(caught.value)
    assert "file.toml" in str(caught.value)


def test_a_cluster_of_whole_and_sliced_gpus(tmp_path: Path) -> None:
    text = '[[gpu]]\ndevice = "H100-SXM5"\ncount = 2\nshare = "mps"\nmax_jobs = 4\nslots = 2\n'
    text += '[[gpu]]\ndevice = "h200"\nmig = ["3g.71gb", "3g.71gb"]\n'
    cluster = read_cluster(file(tmp_path, text))
    assert [(place.gpu, place.kind.name) for place in cluster.places] == [
        (0, "h100-sxm, mps"), (1, "h100-sxm, mps"), (2, "h200 mig:3g.71gb"), (2, "h200 mig:3g.71gb"),
    ]  # fmt: skip
    assert (cluster.gpus, [kind.max_jobs for kind in cluster.kinds]) == (3, [4, 1])
    assert cluster.kinds[1].memory_mib < 80_000
    assert cluster.kinds[0].slots == 2


GPU = '[[gpu]]\ndevice = "h200"\n'
BAD_CLUSTERS = {
    "no GPU": ("", "there is no GPU"),
    "unknown device": ('[[gpu]]\ndevice = "h2000"', "Did you mean"),
    "no device": ("[[gpu]]\ncount = 2", "device is absent"),
    "unknown key": (GPU + "counts = 2", "Did you mean 'count'"),
    "count 0": (GPU + "count = 0", "at least 1"),
    "too many": (GPU + "count = 200000", "more than 100,000"),
    "unknown sharing": (GPU + 'share = "mig"', "unknown way to share 'mig'"),
    "a profile of another GPU": (GPU + 'mig = ["1g.5gb"]', "no MIG profile '1g.5gb'"),
    "too many slices": (GPU + 'mig = ["3g.71gb", "3g.71gb", "3g.71gb"]', "at most 2 instances"),
    "slices beyond the memory": (GPU + 'mig = ["7g.141gb", "1g.18gb"]', "the MIG slices need"),
    "slots of an exclusive GPU": (GPU + "slots = 2", "at most 1 jobs"),
}


@pytest.mark.parametrize("name", BAD_CLUSTERS)
def test_bad_clusters_are_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    text, expected = BAD_CLUSTERS[name]
    with pytest.raises(DataError) as caught:
        read_cluster(file(tmp_path, text))
    assert expected in str(caught.value)
    assert "file.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for read in (read_jobs, read_cluster):
        with pytest.raises(DataError, match=r"docs/scheduling\.md"):
            read(tmp_path / "absent.toml")
