"""Run the command line in this process and return what it printed; used by the tests of commands."""

import pytest

from foretell.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    shown = capsys.readouterr()
    assert ended.value.code == code, shown.err
    return shown.out if code == 0 else shown.err
