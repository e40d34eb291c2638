import threading

import pytest

from foretell.rendering.terminal import progress


def test_quick_work_prints_nothing(capsys):
    with progress.working("Reading model.onnx"):
        pass
    assert capsys.readouterr().err == ""


def test_long_work_says_so_once_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_AFTER_S", 0.0)
    with progress.working("Reading mo\x1bdel.onnx"):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(timeout=120)
    assert capsys.readouterr().err == "foretell: still reading mo�del.onnx …\n"


def test_a_failure_stops_the_timer():
    with pytest.raises(ValueError, match="broken"), progress.working("Reading"):
        raise ValueError("broken")
    assert not any(isinstance(t, threading.Timer) and not t.finished.is_set() for t in threading.enumerate())
