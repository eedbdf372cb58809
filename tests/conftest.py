"""What every test file finds: shapes checked at some calls, one torch thread, the shared material if it is here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import jaxtyping
import pytest
import typechecker
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from sweeping import Sweeps

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests run from a checkout without an install, too

# Before any module of ours is imported: the functions of one that annotates shapes check their types and shapes.
jaxtyping.jaxtyped = typechecker.some_calls  # type: ignore[misc, assignment]
SHAPED = [p for p in sorted((ROOT / "rookexp").rglob("*.py")) if "jaxtyping" in p.read_text(encoding="utf-8")]
install_import_hook([".".join(p.relative_to(ROOT).with_suffix("").parts) for p in SHAPED], "typechecker.check")

import torch  # noqa: E402  after the hook, like everything that might import rookexp

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton, where it is installed, runs its kernels on the CPU, in Python
torch.backends.cuda.enable_cudnn_sdp(False)  # as `Hardware` does for every run, whichever test a GPU begins with

# A deadline would measure how busy the machine is.
hypothesis.settings.register_profile("rookexp", deadline=None)
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)  # for CI: red is the change's fault
hypothesis.settings.load_profile("rookexp")


@pytest.fixture(autouse=True)
def checked_anew() -> None:
    """Each test has the first calls of every function checked."""
    typechecker.calls.clear()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Reference material that lies beside some checkouts; the test is skipped where it does not."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared beside this checkout")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite the texts in tests/golden instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then the long ones: `make test` gives them to workers in this order, and none of
    these should be the last, when other workers have nothing left."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], item.path))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with tests/golden/<name>; `make golden` writes it there instead."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; if it should have: make golden"

    return compare


@pytest.fixture
def float64() -> Iterator[None]:
    """New tensors are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def quiet_logging() -> Iterator[None]:
    """Hydra configures the root logger; what it opened is closed again."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], quiet_logging: None
) -> Sweeps:
    """Types commands of sweeps in an empty folder."""
    from sweeping import Sweeps  # after the hook above

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return Sweeps(tmp_path, monkeypatch, capfd)
