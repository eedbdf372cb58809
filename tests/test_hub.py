"""Which commits of the Hub are written into a configuration; a run with them is in test_session.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rookexp.run_folder import hub

constants = pytest.importorskip("huggingface_hub.constants")


def test_what_the_cache_has_is_pinned_and_all_else_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for kind, commit in (("models", "a" * 40), ("datasets", "b" * 40)):
        repo = tmp_path / f"{kind}--owner--name"
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
    config = {
        "model": {"path": "owner/name", "revision": None},
        "task": {"tasks": {"P": {"data": "owner/name", "revision": "main", "rows": [{"revision": "x"}]}}},
        "local": {"path": str(tmp_path), "revision": None},
        "unknown": {"path": "owner/other", "revision": "v1"},
        "wandb": {"path": "owner/name"},
        "steps": 3,
    }
    found = hub.pinned(config)
    assert found["model"]["revision"] == "a" * 40
    assert found["task"]["tasks"]["P"]["revision"] == "b" * 40
    assert config["model"]["revision"] is None  # what was given is not changed
    rest = ("local", "unknown", "wandb", "steps")
    assert {key: found[key] for key in rest} == {key: config[key] for key in rest}
    assert hub.pinned(found) == found


def test_a_run_goes_on_with_the_checkpoint_of_another_run_that_it_began_with(tmp_path: Path) -> None:
    steps = tmp_path / "other" / "checkpoints"
    for step in ("step-000002", "step-000004"):
        (steps / step).mkdir(parents=True)
        (steps / step / "trainer.json").write_text("{}")
    model = {"path": str(tmp_path / "other"), "revision": None}
    before = hub.pinned({"model": model})
    assert before["model"]["path"] == str(steps / "step-000004" / "model")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(before))
    (steps / "step-000006").mkdir()
    (steps / "step-000006" / "trainer.json").write_text("{}")
    assert hub.as_before({"model": model}, tmp_path, []) == before
    now = {"model": model | {"path": str(tmp_path / "elsewhere")}}
    for config, typed in (({"model": model}, ["model.path=other"]), (now, [])):
        assert hub.as_before(config, tmp_path, typed) == config


@pytest.mark.parametrize(
    ("then", "typed", "now", "kept"),
    [
        ([], [], {"path": "owner/name", "revision": None}, True),
        ([], [], {"path": "owner/name", "revision": "v1"}, True),  # from a file of the user's
        ([], [], {"path": "owner/name"}, False),
        ([], [], {"path": "owner/other", "revision": None}, False),
        ([], ["model.revision=v1"], {"path": "owner/name", "revision": "v1"}, False),
        ([], ["model=other"], {"path": "owner/name", "revision": "v1"}, False),
        (["model.revision=v1"], ["model.revision=v1", "models=1"], {"path": "owner/name", "revision": "v1"}, True),
        (["++model.revision='v1'"], ["++model.revision='v1'"], {"path": "owner/name", "revision": "v1"}, True),
        (["model.revision=v1"], ["model.revision=v2"], {"path": "owner/name", "revision": "v2"}, False),
    ],
)
def test_a_run_goes_on_with_its_commits_unless_something_else_is_typed(
    then: list[str], typed: list[str], now: dict[str, str | None], kept: bool, tmp_path: Path
) -> None:
    assert hub.as_before({"model": now}, tmp_path, typed) == {"model": now}  # nothing to go on with
    before = {"model": {"path": "owner/name", "revision": "a" * 40}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(before))
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(then))
    assert (hub.as_before({"model": now}, tmp_path, typed) == before) == kept
    if not kept:
        assert hub.as_before({"model": now}, tmp_path, typed) == {"model": now}
