"""`.env`: W&B's lines and no others, and nothing of it in a message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rookexp.config import environment
from rookexp.errors import ConfigError

BEFORE = {"WANDB_PROJECT": "typed", "HOME": "h"}


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(BEFORE))


def now() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def test_only_lines_of_wandb_that_are_not_set_already(tmp_path: Path) -> None:
    lines = ["# mine", "WANDB_API_KEY='a$HOME b'", "export WANDB_MODE=offline", "WANDB_PROJECT=file", "WANDB_NAME="]
    (tmp_path / ".env").write_text("\n".join([*lines, "HF_TOKEN=x", "WANDB_EMPTY", "PATH=/nowhere"]))
    environment.load(tmp_path)
    assert now() == BEFORE | {"WANDB_API_KEY": "a$HOME b", "WANDB_MODE": "offline"}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WANDB_MODE=offline", encoding="utf-8-sig")
    environment.load(tmp_path)
    assert now() == BEFORE | {"WANDB_MODE": "offline"}


def test_without_a_file_nothing_happens(tmp_path: Path) -> None:
    environment.load(tmp_path)
    assert now() == BEFORE


def test_an_unreadable_file_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"WANDB_API_KEY=hush\xff\n")
    with pytest.raises(ConfigError, match=r"^\.env: cannot be read \(UnicodeDecodeError\)") as error:
        environment.load(tmp_path)
    assert "hush" not in str(error.value)
    assert error.value.__cause__ is None


def test_the_example_is_only_comments_and_known_words(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parent.parent / ".env.example"
    lines = [line for line in example.read_text(encoding="utf-8").splitlines() if line]
    assert all(line.startswith("#") for line in lines), "a copy of it must change nothing"
    assert any(line.startswith("#WANDB_API_KEY=") for line in lines)
