"""Bad input ends in one line on stderr, exit code 2, nothing printed, left behind or run: options."""

from pathlib import Path

import pytest
from onnx import helper

from bad_models import Refuse, model_of, relu, save, tensor
from foretell.cli.main import main
from foretell.testing import tiny_onnx

BAD_OPTIONS = {
    "text": (["--input", "big"], "Cannot read"),
    "empty": (["--input", ""], "Cannot read"),
    "negative": (["--input", "3x-1x2"], "Cannot read"),
    "zero": (["--input", "0x16x16"], "impossible"),
    "overflow": (["--input", "9" * 18 + "x" + "9" * 18], "impossible"),
    "thousands of digits": (["--input", "1" * 5000], "Cannot read"),
    "wrong rank": (["--input", "3x16"], "dimensions"),
    "fixed size": (["--input", "4x16x16"], "fixed at 3"),
    "unknown name": (["--input", "z=3x16x16"], "no input 'z'"),
    "too many": (["--input", "3x16x16", "--input", "5"], "2 inputs were given"),
    "twice": (["--input", "x=3x16x16", "--input", "x=3x16x16"], "twice"),
    "unknown input dtype": (["--input", "3x16x16:fp99"], "dtype"),
    "wrong input dtype": (["--input", "3x16x16:int64"], "is fp32"),
    "batch zero": (["--batch-size", "0"], "batch size"),
    "batch negative": (["--batch-size", "-3"], "batch size"),
    "batch huge": (["--batch-size", str(2**70)], "batch size"),
    "batch text": (["--batch-size", "many"], "integer"),
    "dtype": (["--dtype", "fp99"], "Unknown dtype"),
    "mode": (["--mode", "infer"], "inference"),
    "language mode": (["--mode", "decode"], "language"),
    "option": (["--frobnicate"], "--frobnicate"),
    "context": (["--context", "-1"], "context"),
}
BAD_PREDICT = {
    "runtime": (["--runtime", "cudagraph"], "cuda-graph"),
    "optimizer": (["--mode", "training", "--optimizer", "adan"], "Unknown optimizer"),
    "optimizer in inference": (["--optimizer", "sgd"], "training"),
    "predictor": (["--predictor", "oracle"], "Unknown predictor"),
    "device": (["--device", "h2000"], "Did you mean"),
    "strange device": (["--device", "abacus"], "foretell devices"),
    "slice": (["--slice", "half"], "slice"),
    "slice larger than the device": (["--slice", "sms:100000"], "132"),
    "slice above 100 %": (["--slice", "mps:101"], "100"),
    "empty slice": (["--slice", "mps:0"], "mps:0"),
    "unknown profile": (["--slice", "mig:9g.999gb"], "9g.999gb"),
    "slice of a device without MIG": (["--device", "t4", "--slice", "mig:1g.5gb"], "MIG"),
}
BAD_INSPECT = {
    "by": (["--by", "colour"], "operator, module, node"),
    "depth": (["--depth", "0"], "--depth"),
    "two formats": (["--json", "--csv"], "--json"),
    "optimizer": (["--optimizer", "adan"], "Unknown optimizer"),
}


@pytest.mark.parametrize("command", ["predict", "inspect"])
@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option(refuse: Refuse, place: Path, command: str, name: str) -> None:
    options, expected = BAD_OPTIONS[name]
    assert expected in refuse(command, save(tiny_onnx(), place / "tiny.onnx"), *options)


@pytest.mark.parametrize("name", BAD_PREDICT)
def test_a_bad_option_of_predict(refuse: Refuse, place: Path, name: str) -> None:
    options, expected = BAD_PREDICT[name]
    assert expected in refuse("predict", save(tiny_onnx(), place / "tiny.onnx"), *options)


@pytest.mark.parametrize("name", BAD_INSPECT)
def test_a_bad_option_of_inspect(refuse: Refuse, place: Path, name: str) -> None:
    options, expected = BAD_INSPECT[name]
    assert expected in refuse("inspect", save(tiny_onnx(), place / "tiny.onnx"), *options)


def test_a_bad_command(refuse: Refuse) -> None:
    refuse("fortell")
    refuse("predict")
    refuse("devices", "h2000")


def test_names_inside_a_model_cannot_steer_the_terminal(
    refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J[/bold]\nfake"
    line = refuse(
        "predict", save(model_of([relu("ghost", evil)], [tensor("x", 1, 4)], [tensor(evil, 1, 4)]), place / "evil.onnx")
    )
    assert "\x1b" not in line
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"], name=f"/{evil}/Relu")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]
    )
    for more in ([], ["--by", "node"], ["--by", "module"]):
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(save(model, place / "[bold].onnx")), *more])
        shown = capsys.readouterr()
        assert ended.value.code == 0, shown.err
        assert "\x1b" not in shown.out
