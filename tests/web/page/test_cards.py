"""Answers as HTML: the numbers are there, and no text of a model is markup."""

import json
from typing import Any

import pytest

from foretell.web.answers import answer
from foretell.web.page import cards as show
from foretell.web.questions import read_question

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, onnx_bytes: bytes) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("models") / "tiny.onnx"
    path.write_bytes(onnx_bytes)

    def ask(kind: str, **values: Any) -> Any:
        files = {"model": str(path)} | ({"other": str(path)} if kind in ("compare", "share") else {})
        question = read_question(kind, {**dict.fromkeys(files, "upload:x"), **values})
        return json.loads(answer(kind, question.model_dump(), files))

    return {
        "predict": ask("predict"),
        "sweep": ask("sweep", devices=["h200", "l4"], batch_sizes=[1, 8])["points"],
        "compare": ask("compare"),
        "share": ask("share", dtype="fp16"),
        "llm": json.loads(
            answer(
                "llm",
                read_question("llm", {"model": "hf:meta-llama/Llama-3.1-8B", "input_tokens": 64}).model_dump(),
                {},
            )
        ),
        "advise": ask("advise", devices=["h200", "l4"], slo_ms=100, max_batch=4, mig=False),
    }


def test_a_prediction_with_its_interval_its_devices_and_charts(answers: dict[str, Any]) -> None:
    page = show.show_prediction(answers["predict"], answers["sweep"])
    low = show.number(answers["predict"]["latency_ms"]["low"])
    assert f"<i>{low} – " in page
    assert ">l4<" in page
    assert page.count("<svg") == 3
    alone = show.show_prediction(answers["predict"], [row for row in answers["sweep"] if row["device"] == "h200"])
    assert alone.count("<svg") == 2


def test_what_is_absent_is_left_out(answers: dict[str, Any]) -> None:
    bare = {name: value for name, value in answers["predict"].items() if name not in ("energy_j", "mig_profile")}
    page = show.show_prediction({**bare, "breakdown": [], "coverage": 0.5, "warnings": [NASTY]}, answers["sweep"])
    assert "<span>energy</span>" not in page
    assert "MIG" not in page
    assert "knows 50% of the work" in page
    assert NASTY not in page


def test_a_comparison_says_how_many_times(answers: dict[str, Any]) -> None:
    page = show.show_comparison(answers["compare"])
    assert "tiny.onnx (second) takes 1 times as long as tiny.onnx (first)" in page
    assert "1 times the parameters" in page


def test_sharing_has_a_bar_alone_and_one_together(answers: dict[str, Any]) -> None:
    sharing = answers["share"]
    page = show.show_sharing(sharing)
    gain = show.number(sharing["throughput_gain"]["value"])
    assert f"Together they do {gain} times the work" in page
    assert page.count(">alone<") == page.count(">together<") == 2
    assert show.number(sharing["jobs"][0]["slowdown"]["value"]) in page
    assert "1 tiny.onnx" in page
    jobs = [{name: job[name] for name in job if name not in ("together_ms", "slowdown")} for job in sharing["jobs"]]
    small = {name: sharing[name] for name in sharing if name != "throughput_gain"}
    page = show.show_sharing({**small, "fits": False, "jobs": [{**jobs[0], "model": NASTY}, jobs[1]]})
    assert "They do not fit together" in page
    assert ">together<" not in page
    assert NASTY not in page


def test_advice_names_the_best_and_the_reasons(answers: dict[str, Any]) -> None:
    best = answers["advise"]["choices"][0]
    refused = [{"place": f"p{i}", "reason": f"{('price', 'memory')[i % 2]}: why {i}"} for i in range(20)]
    page = show.show_advice({**answers["advise"], "refused": refused}, NASTY)
    assert f"{best['device']}" in page
    assert "excluded: 10 by price (p0: why 0); 10 by memory (p1: why 1)" in page
    assert NASTY not in page
    nothing = show.show_advice({"choices": [], "front": [], "refused": refused[:1]}, "m")
    assert "no place meets the requirements" in nothing
    assert "excluded: 1 by price (p0: why 0)" in nothing


def test_names_are_never_markup(answers: dict[str, Any]) -> None:
    row = {**answers["predict"], "model": NASTY, "device": NASTY, "predictor": NASTY}
    rows = [{**entry, "device": NASTY, "predictor": NASTY} for entry in answers["sweep"]]
    assert NASTY not in show.show_prediction(row, rows)
    assert NASTY not in show.show_comparison({**answers["compare"], "models": [row, answers["compare"]["models"][1]]})
    assert NASTY not in show.show_problem(NASTY)
    assert "&lt;script&gt;" in show.show_nothing(NASTY)


def test_the_verdict_comes_first_with_the_capacity(answers: dict[str, Any]) -> None:
    prediction = answers["predict"]
    assert prediction["fits"] == "yes"
    page = show.show_prediction(prediction, answers["sweep"])
    assert page.index("ft-verdict ft-yes") < page.index("ft-card")
    assert "of 140 GiB</i>" in page
    assert "peak memory" not in page  # one memory, the one that decides
    for fits, said in (("perhaps", "Perhaps fits on h200"), ("no", "Does not fit on h200")):
        page = show.show_prediction(
            {**prediction, "fits": fits}, [{**row, "verdict": fits} for row in answers["sweep"]]
        )
        assert f"ft-{fits}" in page
        assert said in page
        assert "does not fit</td>" in page


def test_visitors_read_words_and_not_names_of_predictors(answers: dict[str, Any]) -> None:
    page = show.show_prediction(answers["predict"], answers["sweep"])
    assert "Fitted to measurements of this GPU" in page
    assert "unit-network" not in page
    assert "MIG, a partition made in hardware" in page


def test_the_first_number_of_advice_is_what_it_is_ranked_by(answers: dict[str, Any]) -> None:
    best = answers["advise"]["choices"][0]
    page = show.show_advice(answers["advise"], "m")
    first_row = page[page.index("<tbody>") :]
    assert first_row.index(f">{show.number(best['usd_per_million']['value'])}<") < first_row.index("</tr>")
    assert "ranked by dollars a million inferences" in page


def test_a_language_model_has_its_verdict_and_its_figures(answers: dict[str, Any]) -> None:
    serving = answers["llm"]
    page = show.show_serving(serving)
    assert "fits on 1 × h200" in page
    assert f"<b>{show.number(serving['ttft_ms']['value'])}" in page
    refused = show.show_serving({**serving, "fits": False, "model": NASTY, "smallest_gpus": 4})
    assert "it takes 4 of them" in refused
    assert NASTY not in refused


def test_places_for_a_language_model_say_what_they_cost_and_what_is_excluded(answers: dict[str, Any]) -> None:
    serving = answers["llm"]
    choice = {**serving, "place": "1 × h200, fp8", "instance": NASTY, "copies": 2, "at_risk": True}
    advice = {"model": NASTY, "input_tokens": 64, "output_tokens": 8, "choices": [choice],
              "refused": [{"place": "t4", "reason": "it does not fit"}]}  # fmt: skip
    page = show.show_places(advice)
    assert "1 × h200, fp8, 1 requests at a time, 2 copies" in page
    assert "1 × h200, fp8 !" in page
    assert show.number(serving["usd_per_million_tokens"]["value"]) in page
    assert NASTY not in page
    refused = [{"place": name, "reason": f"{name} has no fp8 units", "kind": "precision"} for name in ("a40", "t4")]
    nothing = show.show_places({**advice, "choices": [], "refused": refused})
    assert "no place keeps the limits" in nothing
    assert "excluded: 2 by precision (a40: a40 has no fp8 units)" in nothing
    nothing = show.show_places({**advice, "choices": []})
    assert "t4" in nothing


def test_progress_says_what_happens_and_for_how_long() -> None:
    assert "<span>3 s</span>" in show.show_progress("Reading", 3)
    assert NASTY not in show.show_progress(NASTY, 0)
