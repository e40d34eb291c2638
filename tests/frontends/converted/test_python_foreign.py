"""``net.py:build`` of other frameworks: trust first, then a process of its own."""

import json
from pathlib import Path

import pytest

from converted_models import fake_environment
from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends import ModelRequest, convert
from foretell.frontends.converted.python_foreign import fingerprint_python, is_python

ECHO_TASK = "open(folder + '/result.json', 'w').write(json.dumps({'error': json.dumps(task), 'kind': 'input'}))"
IMPORTS = {"keras": "import keras", "paddle": "import paddle", "jax": "from flax import nnx"}


@pytest.fixture(autouse=True)
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "environments"))
    for name in IMPORTS:
        fake_environment(tmp_path / "environments", ECHO_TASK, name)


@pytest.mark.parametrize("name", IMPORTS)
def test_it_is_made_in_the_process_of_its_framework(tmp_path: Path, name: str) -> None:
    (tmp_path / "net.py").write_text(IMPORTS[name])
    source = f"{tmp_path / 'net.py'}:make"
    with pytest.raises(UntrustedModelError, match="--trust"):
        convert(ModelRequest(source))
    with pytest.raises(InputError) as raised:
        convert(ModelRequest(source, trust=True))
    task = json.loads(str(raised.value).partition("{")[2].join(["{", ""]))
    assert (task["worker"], task["format"], task["function"]) == (name, "python", "make")


def test_neighbouring_modules_change_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import jax")
    request = ModelRequest(f"{tmp_path / 'net.py'}:build", trust=True)
    before = fingerprint_python(request, "jax", "This")
    (tmp_path / "part.py").write_text("x = 1")
    assert fingerprint_python(request, "jax", "This") != before
    assert fingerprint_python(ModelRequest(request.source), "jax", "This") is None
    with pytest.raises(ModelError, match="There is no file"):
        fingerprint_python(ModelRequest(f"{tmp_path / 'absent.py'}:build", trust=True), "jax", "This")


def test_a_python_spec_has_a_file_and_a_function() -> None:
    assert is_python("a/net.py:build")
    assert not is_python("net.py")
    assert not is_python("C:/m.keras")
