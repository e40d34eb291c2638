"""frontends: where the converters of other frameworks are installed: environments of their own, made when asked for.

Each lies below ``$FORETELL_FRONTENDS``, else below the cache folder, and has a Python of its own: its pins clash with
nobody's (paddle2onnx wants an old onnx), and a process of it cannot disturb ours.
"""

import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from foretell.errors import MissingExtraError
from foretell.frontends.cache import cache_folder
from foretell.optional import available

_NOTE = "foretell.json"  # written last: an environment without it is not finished
_INSTALL_S = 1800
# what would bend an installation: constraints of another project, another target
_BENDING = ("PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PYTHONPATH")


@dataclass(frozen=True)
class Framework:
    """A framework whose models are converted, and what its converter is made of."""

    name: str
    title: str
    modules: tuple[str, ...]  # that must be there, where the running Python is to convert
    packages: tuple[str, ...]  # what an environment of its own gets


FRAMEWORKS = {
    "keras": Framework(
        "keras",
        "TensorFlow and Keras",
        ("tensorflow", "keras", "tf2onnx"),
        ("tensorflow-cpu==2.21.0", "keras==3.15.1", "tf2onnx==1.17.0", "onnx==1.23.2"),
    ),
    "paddle": Framework(
        "paddle",
        "PaddlePaddle",
        ("paddle", "paddle2onnx"),
        # paddle2onnx imports packaging without asking for it
        ("paddlepaddle==3.3.1", "paddle2onnx==2.1.0", "onnx==1.17.0", "packaging==25.0"),
    ),
    "jax": Framework(
        "jax",
        "JAX and Flax",
        ("jax", "jax2onnx"),
        ("jax==0.10.2", "flax==0.12.8", "jax2onnx==0.17.1", "onnx==1.23.2", "cloudpickle==3.1.2"),
    ),
}


@dataclass(frozen=True)
class Environment:
    """A Python that can convert: an own one, or the running one."""

    framework: Framework
    python: Path
    own: bool
    versions: str  # "tensorflow-cpu 2.21.0, keras 3.15.1, …"

    @property
    def command(self) -> tuple[str, ...]:
        """How it is started: nothing of the caller's Python leaks into an own environment."""
        # -P: our folder has files named like frameworks; it must not be searched for modules
        return (str(self.python), "-I" if self.own else "-P")


def environments_folder() -> Path:
    """``$FORETELL_FRONTENDS``, else ``frontends`` in the cache folder."""
    own = os.environ.get("FORETELL_FRONTENDS")
    return Path(own) if own else cache_folder() / "frontends"


def find_environment(name: str, *, running_first: bool = False) -> Environment | None:
    """The Python that converts the models of a framework: an own environment before the running one, or after it."""
    looks = (_running, _own) if running_first else (_own, _running)
    return next((found for look in looks if (found := look(FRAMEWORKS[name])) is not None), None)


def _own(framework: Framework) -> Environment | None:
    folder = environments_folder() / framework.name
    python = _python(folder)
    try:
        noted = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if python.exists():
            return Environment(framework, python, True, str(noted["versions"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def _running(framework: Framework) -> Environment | None:
    if all(available(module) for module in framework.modules):
        return Environment(framework, Path(sys.executable), False, _versions(framework.modules))
    return None


def need_environment(name: str, purpose: str) -> Environment:
    """The same, or an error that says how to get one."""
    found = find_environment(name)
    if found is None:
        raise MissingExtraError(
            f"{purpose} needs {FRAMEWORKS[name].title}, which is not installed: foretell frontends install {name}"
        )
    return found


def install(name: str, tell: Callable[[str], None] = lambda _: None) -> Environment:
    """Make the environment of a framework, or make it anew; what fails leaves nothing."""
    framework = FRAMEWORKS[name]
    folder = environments_folder() / name
    partial = folder.with_name(f".{name}-{os.getpid()}")
    variables = {k: v for k, v in os.environ.items() if k not in _BENDING}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        tell(f"making {folder}")
        _run((sys.executable, "-m", "venv", "--clear", str(partial)), variables, name)
        tell(f"installing {', '.join(framework.packages)}")
        _run((str(_python(partial)), "-m", "pip", "install", "-q", *framework.packages), variables, name)
        versions = ", ".join(p.replace("==", " ") for p in framework.packages)
        (partial / _NOTE).write_text(json.dumps({"versions": versions}), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)  # a virtual environment finds itself by where its Python lies
    except OSError as error:
        raise MissingExtraError(f"Cannot make {folder}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Environment(framework, _python(folder), True, versions)


def remove(name: str) -> bool:
    """Delete the environment of a framework; says whether there was one."""
    folder = environments_folder() / name
    if not folder.is_dir():
        return False
    with suppress(OSError):
        (folder / _NOTE).unlink()
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _run(command: tuple[str, ...], variables: dict[str, str], name: str) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        text=True,
        errors="replace",
    )
    try:
        shown, _ = process.communicate(timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise MissingExtraError(f"Installing {name} took longer than {_INSTALL_S} s and was ended.") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        lines = [line for line in shown.splitlines() if line.strip() and not line.startswith("WARNING")]
        telling = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no reason given")
        raise MissingExtraError(f"Installing {name} failed: {telling.strip()[:300]}")


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _versions(modules: tuple[str, ...]) -> str:
    """Versions of modules of the running Python, without importing them."""
    owners = metadata.packages_distributions()
    found = []
    for module in modules:
        for package in (module, *owners.get(module, ())):
            with suppress(metadata.PackageNotFoundError):
                found.append(f"{module} {metadata.version(package)}")
                break
        else:
            found.append(module)
    return ", ".join(found)


def user_base() -> str:
    """Where the running Python looks for packages of its user; a child with another home must be told."""
    return site.getuserbase()
