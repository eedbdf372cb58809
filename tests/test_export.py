"""Export: `transformers` and we read the folder alike, the card says what the run's records say, nothing is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import made_runs
import pytest
import torch
import yaml

from rookexp import export, policies
from rookexp.config import door
from rookexp.errors import ConfigError, DataError
from rookexp.models import weights
from rookexp.run_folder import model_card
from rookexp.run_folder.run_info import write_run_info

PROMPT_OF_CARD = "P: r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"
PROMPT = "P: rnb1k2r/pp3ppp/4pn2/2bp4/P1P5/B4N2/2P1PPPP/R2QKB1R b KQkq - 2 8"
FILES = {
    "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


def wrote(**changes: Any) -> None:
    """The door's task, carried out."""
    defaults = {"run": None, "out": None, "dtype": "float32", "overwrite": False, "push": None, "private": True}
    asked = {
        "task_name": "export",
        **defaults,
        **{key: str(v) if isinstance(v, Path) else v for key, v in changes.items()},
    }
    export.export(asked, Path("."))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder; its weights are wide enough apart that no two logits tie."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 128, "seed": 0}
    policy = policies.random_gpt2(tokenizer="square_aware", spelled=False, **sizes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    folder = tmp_path_factory.mktemp("made") / "model"
    policy.tokenizer.save(folder)
    weights.save_model(policy.model, folder, dtype="float32", tokenizer_file=folder / "tokenizer.json")
    return folder


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Path:
    """A run's folder with checkpoints of steps 10 and 20."""
    folder = made_runs.make(tmp_path / "run", **{"seed": 3, "optim.lr": 2e-4})
    config = made_runs.config(**{"seed": 3, "optim.lr": 2e-4})
    config["model"] |= {"path": "/home/somebody/models/base", "revision": None}
    config["track"] = {"wandb": {"_target_": "x.Y", "entity": "somebody", "api_key": "hf_secret"}}
    write_run_info(folder, config, ["train.py"])
    (folder / ".hydra" / "overrides.yaml").write_text(
        yaml.safe_dump(
            [
                "seed=3",
                "optim.lr=2e-4",
                "model.path=/home/somebody/models/base",
                "hydra.run.dir=/home/x",
                "++track.a=wandb",
            ]
        )
    )
    for step in (10, 20):
        shutil.copytree(model, folder / "checkpoints" / f"step-{step:06d}" / "model")
        (folder / "checkpoints" / f"step-{step:06d}" / "trainer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 1e-4)])
def test_transformers_computes_and_writes_the_same(dtype: str, tolerance: float, model: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    wrote(run=model, out=tmp_path / "out", dtype=dtype)
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    ours = policies.load(tmp_path / "out")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert str(theirs.dtype) == f"torch.{dtype}"
    assert {theirs.config.resid_pdrop, theirs.config.embd_pdrop, theirs.config.attn_pdrop} == {0.0}
    theirs = theirs.float().train()  # as if somebody forgot: there is no dropout to forget
    asked = words(PROMPT, return_tensors="pt")
    assert set(asked) == {"input_ids", "attention_mask"}
    assert asked["input_ids"].tolist() == [ours.tokenizer.encode(PROMPT)]
    with torch.no_grad():
        said = ours.model.logits(ours.model.hidden(asked["input_ids"]))
        torch.testing.assert_close(said, theirs(**asked).logits, rtol=0, atol=tolerance)
    from rookexp import generate

    ids = ours.tokenizer.encode(PROMPT)
    answer = generate.greedy(ours.model, [ids], 30, ours.tokenizer.eot_id).tokens[0].tolist()
    written = theirs.generate(**asked, max_new_tokens=30, do_sample=False, pad_token_id=ours.tokenizer.eot_id)[
        0
    ].tolist()
    assert written == answer
    assert len(answer) > len(ids) + 5
    assert words.decode(written, skip_special_tokens=True) == ours.tokenizer.decode(answer)


def test_float32_is_exact_and_bfloat16_rounded(model: Path, tmp_path: Path) -> None:
    before = policies.load(model).model.state_dict()
    for dtype in ("float32", "bfloat16"):
        wrote(run=model, out=tmp_path / dtype, dtype=dtype)
        after = policies.load(tmp_path / dtype).model.state_dict()
        assert all(torch.equal(after[k], v.to(getattr(torch, dtype)).float()) for k, v in before.items())


@pytest.mark.parametrize(
    ("style", "example", "asked"),
    [
        ("padded_prefill", f"{PROMPT_OF_CARD}{' ' * 25}M:", " p_style=padded_prefill"),
        ("bare", PROMPT_OF_CARD, ""),
        ("my_own", PROMPT_OF_CARD, ""),
    ],
)
def test_the_card_asks_as_the_run_was_trained(style: str, example: str, asked: str, run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["task"]["p_style"] = style
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    wrote(run=run, out=tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert f'prompt = tokenizer("{example}", return_tensors="pt")' in card
    for command, more in (("evaluate", ' "documents=[FILE]"'), ("uci", "")):
        assert [line.split("  ")[0] for line in card.splitlines() if f"rookexp.{command} model" in line] == [
            f"python -m rookexp.{command} model.path=mine{asked}{more}"
        ]


def test_the_card_of_a_run_says_what_its_records_say(run: Path, tmp_path: Path) -> None:
    wrote(run=run, out=tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    assert "base_model" not in yaml.safe_load(head), "a folder of this machine is nobody else's base"
    assert body.startswith("\n# mine\n")
    assert "20 steps of `python -m rookexp.train seed=3 optim.lr=2e-4 model.path=.../base`." in body
    assert "Base model: `.../base`." in body
    assert "- Seeds: seed 3" in body
    assert json.loads((run / "run.json").read_text())["git"]["revision"] in body
    assert 'PolicyTask (positions ".../train.jsonl")' in body
    for typed, portable in (
        ("eval.positions={P: /home/me/x.jsonl, A: '~/me/a.txt'}", "eval.positions={P: .../x.jsonl, A: '.../a.txt'}"),
        ("documents=[/home/me/x.txt,b/c.txt]", "documents=[.../x.txt,b/c.txt]"),
        ("track.tags=[https://host/me,1/2]", "track.tags=[https://host/me,1/2]"),
        ("model.path=/home/me/base", "model.path=.../base"),
    ):
        assert model_card.portable(typed) == portable
    assert "| metric | step 0 | step 20 |" in body
    assert "| reward | -0.25 | 0.25 |" in body
    assert "Verdict of the run: PASS." in body
    assert "python -m rookexp.uci model.path=mine" in body
    whole = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    assert whole["optim"] == {"lr": 2e-4}
    for private in ("somebody", "hf_secret", str(tmp_path), "/elsewhere", "wandb"):
        assert private not in card


def test_the_card_of_a_run_that_went_on_says_what_was_typed_before(run: Path, tmp_path: Path) -> None:
    for argv in (["train.py", "seed=3", "model.path=/home/somebody/base"], ["train.py", "resume=/home/somebody/run"]):
        write_run_info(run, made_runs.config(seed=3), argv)
    write_run_info(run, made_runs.config(seed=3), ["train.py", "resume=run", "optim.lr=2e-4"])
    card = model_card.training(model_card.origin_of(run / "checkpoints" / "step-000020" / "model"))
    assert (
        "- Gone on with, after `python -m rookexp.train`, then `python -m rookexp.train seed=3 model.path=.../base`, "
        "then `python -m rookexp.train resume=.../run`" in card
    )


def test_the_card_says_where_the_options_of_a_run_are(run: Path) -> None:
    about: dict[str, Any] = {
        "job": {"config_name": "mine"},
        "runtime": {"config_sources": [{"provider": "command-line", "path": "/home/somebody/my conf"}]},
        "overrides": {"hydra": ["hydra.searchpath=['file:///home/somebody/more']", "hydra.run.dir=x"]},
    }

    def told() -> str:
        (run / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": about}))
        return next(model_card.training(model_card.origin_of(run / "checkpoints" / "step-000020" / "model")))

    assert (
        "`python -m rookexp.train --config-dir '.../my conf' --config-name mine "
        """'hydra.searchpath=['"'"'file://.../more'"'"']' seed=3 optim.lr=2e-4 model.path=.../base`"""
    ) in told()
    about["overrides"]["hydra"] = ["hydra.searchpath=file:///home/somebody/more"]
    assert " hydra.searchpath=file://.../more seed=3" in told()
    (run / "whole").mkdir()
    sources = [{"provider": "main", "path": str(run / "whole")}]
    about |= {"job": {"config_name": "config"}, "runtime": {"config_sources": sources}, "overrides": {"hydra": []}}
    assert "rookexp.train --config-path .../whole seed=3" in told()
    sources[0]["path"] = "/elsewhere/rookexp/conf"
    assert "`python -m rookexp.train seed=3 optim.lr=2e-4 model.path=.../base`" in told()


@pytest.mark.parametrize("info", ["[]", '{"git": {}}', '{"git": null, "seeds": null}'])
def test_a_run_without_all_its_records_is_told_or_exported_without(info: str, run: Path, tmp_path: Path) -> None:
    (run / "run.json").write_text(info, encoding="utf-8")
    if info == "[]":
        with pytest.raises(DataError, match=r"run\.json: no JSON object; delete it"):
            wrote(run=run, out=tmp_path / "mine")
    else:
        wrote(run=run, out=tmp_path / "mine")
        assert "- Code: rookexp 0.1.0, of an installed copy" in (tmp_path / "mine" / "README.md").read_text()


def test_the_card_of_an_older_checkpoint_has_its_own_figures(run: Path, tmp_path: Path) -> None:
    wrote(run=run / "checkpoints" / "step-000010", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "10 steps of `python -m rookexp.train" in card
    assert "| metric | step 0 | step 10 |" in card
    assert "| reward | -0.25 | 0 |" in card
    assert "Verdict" not in card


def test_a_checkpoint_before_the_second_evaluation_has_no_figures(run: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if row["step"] in (0, 20) or not k.startswith("eval/")} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    wrote(run=run / "checkpoints" / "step-000010", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "no evaluation after that of step 0 and up to this step" in card
    assert "| metric |" not in card


def test_a_hub_model_is_the_base_by_its_id_and_an_unfinished_run_says_so(run: Path, tmp_path: Path) -> None:
    made = yaml.safe_load((run / "config.yaml").read_text())
    made["model"] |= {"path": "jrahn/RookWorld-LM-124M", "revision": "a" * 40}
    (run / "config.yaml").write_text(yaml.safe_dump(made))
    (run / "summary.json").write_text(json.dumps({"status": "interrupted", "reason": "SIGTERM after step 20"}))
    wrote(run=run, out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "jrahn/RookWorld-LM-124M"
    assert f"Base model: `jrahn/RookWorld-LM-124M@{'a' * 40}`." in card
    assert "Its run has not finished: interrupted (SIGTERM after step 20)." in card


def test_a_base_model_is_named_without_the_folders_above(tmp_path: Path) -> None:
    named = {"mine": "mine", "a/checkpoints/step-000002/model": "a/checkpoints/step-000002", "model": "model"}
    for path, words in named.items():
        assert model_card.shown(str(tmp_path / path)) == f".../{words}"
    assert model_card.shown("owner/name") == "owner/name"


def test_a_model_without_a_run_has_a_card_without_one(model: Path, tmp_path: Path) -> None:
    wrote(run=model, out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Base model: `.../model`." in card
    assert "## Training" not in card
    assert model_card.origin_of(model) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "run=null: allowed: a folder; type run=RUN out=FOLDER"),
        ({"run": "", "out": "new"}, "run=: allowed: text of length >= 1"),
        ({"run": "x"}, "out=null: allowed: a folder; type run=RUN"),
        ({"run": "x", "out": "full"}, "out=full: not empty; allowed: a new folder, or add overwrite=true"),
        ({"run": "x", "out": "file"}, "out=file: a file; allowed: a folder"),
        ({"run": "x", "out": "."}, r"out=\.: it is replaced whole and you stand in it; allowed: another folder"),
        ({"run": "x", "out": ".."}, r"out=\.\.: it is replaced whole and you stand in it"),
        ({"run": "x", "out": "new", "push": "name"}, "push=name: allowed: a Hub repository's owner/name, or null"),
        ({"run": "x", "out": "new", "dtype": "float16"}, "dtype=float16: allowed: float32, bfloat16"),
        ({"run": "x", "out": "new", "puhs": "a/b"}, "puhs=a/b: no such key .*did you mean push?"),
    ],
)
def test_what_was_typed_wrong_is_refused_before_anything_is_loaded(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=words):
        wrote(**changes)
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "diary.txt", "file"}


@pytest.mark.parametrize("out", ["file/new", "/dev/null/new"])
def test_a_folder_that_cannot_be_written_is_named(out: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="out=.*new: cannot be written .*; name a folder"):
        wrote(run=model, out=tmp_path / out)


def test_overwrite_replaces_an_earlier_export_whole(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrote(run=model, out=out, dtype="bfloat16")
    for name in ("vocab.json", "merges.txt"):  # which an older export may have had, and `transformers` would read
        (out / name).write_text("old")
    wrote(run=model, out=out, overwrite=True)
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    before = policies.load(model)
    assert torch.equal(policies.load(out).model.wte.weight, before.model.wte.weight), "float32 again"
    with pytest.raises(ConfigError, match="the folder that is exported"):
        wrote(run=out, out=out, overwrite=True)
    assert policies.load(out).model.config == before.model.config


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.md", "out=.*: no earlier export, its README.md is none of ours; allowed: a new folder"),
        ("diary.txt", "out=.*: more than an earlier export, it has diary.txt; move it, or name a new folder"),
        ("config.json/x", "out=.*: more than an earlier export, it has config.json; move it"),
    ],
)
def test_a_folder_that_is_no_export_is_never_taken_away(name: str, words: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrote(run=model, out=out)
    mine = out / name
    if name.endswith("x"):
        mine.parent.unlink()
        mine.parent.mkdir()
    mine.write_text("# mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=words):
        wrote(run=model, out=out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_what_a_killed_export_has_left_goes_with_the_next_one(model: Path, tmp_path: Path) -> None:
    for name in ("out.new-123", "out.new-notes", "other.new-5"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    wrote(run=model, out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.new-notes", "other.new-5"}


def test_an_export_that_fails_leaves_the_earlier_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    wrote(run=model, out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*args: Any, **options: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(weights, "save_model", full)
    for where in (out, tmp_path / "other"):
        with pytest.raises(DataError, match="cannot be written .No space"):
            wrote(run=model, out=where, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


class Api:
    """A Hub that notes what it is asked."""

    calls: list[tuple[str, dict[str, Any]]]
    public = False
    there: tuple[str, ...] = ()
    error: Exception | None = None

    def create_repo(self, repo: str, **options: Any) -> str:
        if self.error is not None:
            raise self.error
        Api.calls.append((f"create {repo}", options))
        return f"https://hub/{repo}"

    def model_info(self, repo: str) -> Any:
        return type("Info", (), {"private": not self.public})

    def upload_folder(self, **options: Any) -> None:
        """As in huggingface_hub, whose own matching this is: what is sent is not removed."""
        utils = pytest.importorskip("huggingface_hub.utils")
        files = [path.name for path in options["folder_path"].iterdir()]
        sent = set(utils.filter_repo_objects(files, allow_patterns=options["allow_patterns"]))
        gone = set(utils.filter_repo_objects(self.there, allow_patterns=options["delete_patterns"]))
        Api.there = tuple(sorted(set(self.there) - gone | sent))
        Api.calls.append(("upload", options))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[Api]:
    hub = pytest.importorskip("huggingface_hub")
    Api.calls, Api.there = [], ()
    monkeypatch.setattr(hub, "HfApi", Api)
    return Api


def test_a_push_is_asked_for_private_and_writes_no_token(
    api: type[Api], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    wrote(run=model, out=tmp_path / "a")
    assert not api.calls
    wrote(run=model, out=tmp_path / "b", push="owner/name")
    [(created, options), (_, sent)] = api.calls
    assert (created, options) == ("create owner/name", {"private": True, "exist_ok": False})
    assert (sent["repo_id"], sent["folder_path"]) == ("owner/name", tmp_path / "b")
    assert set(sent["allow_patterns"]) >= FILES
    assert (tmp_path / "b" / "README.md").read_text().count("owner/name") >= 3
    for path in tmp_path.rglob("*.*"):
        assert b"hf_secret" not in path.read_bytes()


def test_a_push_that_fails_leaves_the_folder_and_says_what_to_type(
    api: type[Api], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "error", RuntimeError("401 Unauthorized\nmore"))
    with pytest.raises(DataError, match=r"owner/name: not pushed \(401 Unauthorized\); .*Type `hf auth login`"):
        wrote(run=model, out=tmp_path / "out", push="owner/name")
    assert policies.load(tmp_path / "out")
    monkeypatch.setattr(api, "error", None)
    monkeypatch.setattr(api, "public", True)
    with pytest.raises(DataError, match="owner/name: is there and public; push with private=false"):
        wrote(run=model, out=tmp_path / "out", push="owner/name", overwrite=True)
    assert [name for name, _ in api.calls] == ["create owner/name"], "nothing is sent"


def test_a_push_leaves_no_older_weights_beside_its_own_and_nothing_else_is_removed(
    api: type[Api], model: Path, tmp_path: Path
) -> None:
    kept = {".gitattributes", "LICENSE", "games.pgn", "eval/model.safetensors", "onnx/model.onnx", "old/vocab.json"}
    api.there = (
        *kept, "README.md", "config.json", "model.safetensors", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "adapter_config.json",
        "adapter_model.safetensors", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    )  # fmt: skip
    wrote(run=model, out=tmp_path / "out", push="owner/name", overwrite=True)
    assert set(api.there) == kept | {path.name for path in (tmp_path / "out").iterdir()}


def test_the_door_writes_only_what_it_is_asked_for(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quiet_logging: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)
    monkeypatch.setattr("sys.argv", ["rookexp-export", f"run={model}", "out=made"])
    export.main()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert capsys.readouterr().out.startswith("model: made (")
