"""Frontends: the virtual environments in which the converters of other frameworks are installed.

Each environment is a folder below ``$FORETELL_FRONTENDS``, or else below the cache folder. Its pinned packages cannot
conflict with those of foretell (paddle2onnx needs an old onnx), and its processes cannot disturb ours. An environment
is made only when the user asks for it: ``foretell frontends install NAME``.
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

_NOTE = "foretell.json"  # written last: an environment without it is incomplete
_INSTALL_S = 1800
# variables that would change an installation: constraints of another project, another target
_PIP_VARIABLES = ("PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PYTHONPATH")


@dataclass(frozen=True)
class Framework:
    """A framework whose models are converted, and the packages that its converter needs."""

    name: str
    title: str
    modules: tuple[str, ...]  # with these installed, the running Python can convert
    packages: tuple[str, ...]  # installed in a separate environment


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
        # paddle2onnx imports packaging without declaring it
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
    """A Python that can convert: that of a separate environment (``own``), or the running one."""

    framework: Framework
    python: Path
    own: bool
    versions: str  # "tensorflow-cpu 2.21.0, keras 3.15.1, …"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it. -I isolates a separate environment from the variables and paths of the caller."""
        # -P: the folder of the worker is not searched for modules, because its files have names like frameworks
        return (str(self.python), "-I" if self.own else "-P")


def environments_folder() -> Path:
    """Return ``$FORETELL_FRONTENDS``, else ``frontends`` in the cache folder."""
    folder = os.environ.get("FORETELL_FRONTENDS")
    return Path(folder) if folder else cache_folder() / "frontends"


def find_environment(name: str, *, running_first: bool = False) -> Environment | None:
    """Return the Python that converts the models of a framework, or None.

    A separate environment comes before the running Python, unless ``running_first``.
    """
    searches = (_running, _own) if running_first else (_own, _running)
    return next((result for search in searches if (result := search(FRAMEWORKS[name])) is not None), None)


def _own(framework: Framework) -> Environment | None:
    """The separate environment of a framework, if it was installed completely."""
    folder = environments_folder() / framework.name
    python = _python(folder)
    try:
        note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if python.exists():
            return Environment(framework, python, True, str(note["versions"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def _running(framework: Framework) -> Environment | None:
    if all(available(module) for module in framework.modules):
        return Environment(framework, Path(sys.executable), False, _versions(framework.modules))
    return None


def need_environment(name: str, purpose: str) -> Environment:
    """Return the Python that converts the models of a framework, or raise an error that says how to install one."""
    environment = find_environment(name)
    if environment is None:
        raise MissingExtraError(
            f"{purpose} needs {FRAMEWORKS[name].title}, which is not installed: foretell frontends install {name}"
        )
    return environment


def install(name: str, report: Callable[[str], None] = lambda _: None) -> Environment:
    """Make the environment of a framework, or replace it. A failure leaves nothing behind.

    ``report`` is called with a line about each step.
    """
    framework = FRAMEWORKS[name]
    folder = environments_folder() / name
    partial = folder.with_name(f".{name}-{os.getpid()}")
    variables = {k: v for k, v in os.environ.items() if k not in _PIP_VARIABLES}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        report(f"making {folder}")
        _run((sys.executable, "-m", "venv", "--clear", str(partial)), variables, name)
        report(f"installing {', '.join(framework.packages)}")
        _run((str(_python(partial)), "-m", "pip", "install", "-q", *framework.packages), variables, name)
        versions = ", ".join(p.replace("==", " ") for p in framework.packages)
        (partial / _NOTE).write_text(json.dumps({"versions": versions}), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)  # a virtual environment may be moved: it finds itself by the path of its Python
    except OSError as error:
        raise MissingExtraError(f"Cannot make {folder}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Environment(framework, _python(folder), True, versions)


def remove(name: str) -> bool:
    """Delete the environment of a framework; returns whether there was one."""
    folder = environments_folder() / name
    if not folder.is_dir():
        return False
    with suppress(OSError):
        (folder / _NOTE).unlink()  # first, so that an interrupted deletion leaves no environment that looks complete
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _run(command: tuple[str, ...], variables: dict[str, str], name: str) -> None:
    """Run a command to its end; raise an error with the most useful line of its output if it fails."""
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
        output, _ = process.communicate(timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise MissingExtraError(f"Installing {name} took longer than {_INSTALL_S} s and was stopped.") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no reason given")
        raise MissingExtraError(f"Installing {name} failed: {reason.strip()[:300]}")


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _versions(modules: tuple[str, ...]) -> str:
    """The versions of modules of the running Python, without importing them."""
    owners = metadata.packages_distributions()
    versions = []
    for module in modules:
        for package in (module, *owners.get(module, ())):
            with suppress(metadata.PackageNotFoundError):
                versions.append(f"{module} {metadata.version(package)}")
                break
        else:
            versions.append(module)
    return ", ".join(versions)


def user_base() -> str:
    """Return the folder of the user's own packages; a child with another home would not find it."""
    return site.getuserbase()
