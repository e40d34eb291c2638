"""``foretell pack``: numbers on a terminal, JSON, files, and one line where something is wrong."""

import json
from pathlib import Path

import pytest

from command_line import run

GPU = '[[gpu]]\ndevice = "h200"\ncount = 2\nshare = "mps"\n'
JOBS = (
    '[[job]]\nname = "a"\nalone_ms = 5\nsteps = 1000\nsm_share = 0.4\nmemory_mib = 100\ncount = 5\nmax_slowdown = 2\n'
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(JOBS)
    Path("cluster.toml").write_text(GPU)
    return ["pack", "jobs.toml", "--cluster", "cluster.toml"]


def test_a_schedule_on_a_terminal(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, *files)
    assert "5 jobs on 2 GPUs by slowdown" in shown
    assert "makespan" in shown
    assert "gpu 1" in shown


def test_a_job_of_several_gpus_has_a_bar_on_each(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.toml").write_text(JOBS.replace("count = 5", "gpus = 2"))
    shown = run(capsys, *files, "--report", "page.html")
    assert [line.split()[:2] for line in shown.splitlines() if "aaaa" in line] == [["gpu", "0"], ["gpu", "1"]]
    assert "gpus 0, 1" in Path("page.html").read_text()


def test_json_has_finite_numbers_only(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(run(capsys, *files, "--json"), parse_constant=refuse)
    assert document["makespan_s"] == pytest.approx(10.0)
    assert len(document["schedule"]) == 5


def test_all_files_are_written(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, *files, "--kubernetes", "k8s", "--ray", "ray.json", "--report", "page.html")
    assert shown.count("written: ") == 4
    assert len(json.loads(Path("k8s/jobs.json").read_text())["items"]) == 5
    assert json.loads(Path("ray.json").read_text())["jobs"]
    assert "<svg" in Path("page.html").read_text()
    run(capsys, *files, "--report", "gantt.svg")
    assert Path("gantt.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("more", "jobs", "gpu", "expected"),
    [
        (["--policy", "best"], JOBS, GPU, "Unknown policy 'best'"),
        (["--report", "page.pdf"], JOBS, GPU, "must end in .html or .svg"),
        ([], "", GPU, "there is no job"),
        ([], JOBS + "arrival_s = -3\n", GPU, "arrival_s is -3"),
        ([], JOBS.replace("= 100\n", "= 999999\n"), GPU, "fits nowhere"),
        ([], JOBS + "gpus = 3\n", GPU, "needs 3 whole GPUs of one kind, and the cluster has 2"),
        ([], JOBS + "gpus = 2\n", GPU, "gives parts of GPUs where they are shared"),
        ([], JOBS + "gpus = 2\n", GPU.replace('share = "mps"', ""), "needs 2: leave out --ray"),
        ([], JOBS, "", "there is no GPU"),
        (["--cluster", "absent.toml"], JOBS, GPU, "Cannot read absent.toml"),
        ([], '[arrivals]\ntrace = "philly"\nfile = "absent"\n[[job]]\nname = "a"\nalone_ms = 1\n', GPU, "absent"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    files: list[str], capsys: pytest.CaptureFixture[str], more: list[str], jobs: str, gpu: str, expected: str
) -> None:
    Path("jobs.toml").write_text(jobs)
    Path("cluster.toml").write_text(gpu)
    before = sorted(Path().rglob("*"))
    error = run(capsys, *files, "--kubernetes", "k8s", "--ray", "ray.json", *more, code=2)
    assert expected in error
    assert error.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_a_place_that_cannot_be_written(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("a file")
    assert "Cannot write" in run(capsys, *files, "--kubernetes", "taken", code=2)
