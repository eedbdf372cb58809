"""Hugging Face GPT-2 folders: exact both ways, float32 in memory, and every misfit named."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer

from rookexp import policies, tokenizers
from rookexp.errors import ConfigError, DataError
from rookexp.models import weights
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.models.hub import fetch
from rookexp.models.weights import load_model, parameter_count, save_model

CONFIG = GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=24, vocab_size=97, layer_norm_epsilon=1e-4)
TOKENS = torch.arange(48).view(3, 16)
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 24, "vocab_size": 97}


def random_model(seed: int = 0) -> GPT2:
    model, generator = GPT2(CONFIG), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def folder(tmp_path) -> Path:
    """A valid folder with float32 weights."""
    save_model(random_model(), tmp_path / "model", dtype="float32", tokenizer_file=None)
    return tmp_path / "model"


def edit_tensors(folder: Path, edit) -> None:
    """Applies `edit` to the dict of tensors in the file."""
    tensors = load_file(folder / "model.safetensors")
    tensors = edit(tensors) or tensors
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, folder / "model.safetensors")


def edit_config(folder: Path, **values) -> None:
    """Sets values in config.json; `...` takes a key out."""
    raw = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))


def assert_same(a: GPT2, b: GPT2) -> None:
    assert a.config == b.config
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert x.dtype == y.dtype == torch.float32, name
        assert torch.equal(x, y), name


# Round trips


def test_read_back_is_bitwise_and_owns_its_memory(folder):
    model = load_model(folder)
    assert_same(model, random_model())
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.is_contiguous()
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))  # nothing may still be mapped from the file
    assert_same(model, random_model())


def test_bfloat16_file_gives_float32_weights_of_the_rounded_values(tmp_path):
    save_model(random_model(), tmp_path, dtype="bfloat16", tokenizer_file=None)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert_same(load_model(tmp_path), random_model().to(torch.bfloat16).float())


def test_write_transformers_read_is_exact(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    reference = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert reference.dtype == torch.float32
    assert reference.config.layer_norm_epsilon == CONFIG.layer_norm_epsilon
    assert {reference.config.resid_pdrop, reference.config.embd_pdrop, reference.config.attn_pdrop} == {0.0}
    reference.save_pretrained(tmp_path / "again")
    assert_same(load_model(tmp_path / "again"), random_model())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("headless", [False, True], ids=["lm", "no-prefix"])
def test_what_transformers_saved_is_read(tmp_path, dtype, headless):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        **SMALL, initializer_range=0.2, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    reference = (transformers.GPT2Model if headless else transformers.GPT2LMHeadModel)(config).to(dtype)
    reference.save_pretrained(tmp_path)
    assert headless != any(key.startswith("transformer.") for key in load_file(tmp_path / "model.safetensors"))
    model = load_model(tmp_path).train()
    with torch.no_grad():
        theirs = reference.eval().float()(TOKENS)
        ours = model.hidden(TOKENS) if headless else model.logits(model.hidden(TOKENS))
    torch.testing.assert_close(ours, theirs.last_hidden_state if headless else theirs.logits, rtol=0, atol=1e-4)


def test_masks_and_tied_head_of_older_files_are_accepted(folder):
    def older(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
        for i in range(CONFIG.n_layer):
            tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.bool).tril()
            tensors[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)

    edit_tensors(folder, older)
    assert_same(load_model(folder), random_model())


def test_the_tied_tensor_may_have_the_heads_name_alone(tmp_path):
    """As safetensors' save_model writes a model of transformers."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import save_model as save_module

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=24, vocab_size=97, n_inner=128)
    config.bos_token_id = config.eos_token_id = 0
    reference = transformers.GPT2LMHeadModel(config).eval()
    reference.config.save_pretrained(tmp_path)
    save_module(reference, str(tmp_path / "model.safetensors"))
    assert "transformer.wte.weight" not in load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    with torch.no_grad():
        ours, theirs = model.logits(model.hidden(TOKENS)), reference(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_tokenizer_travels_with_the_weights(tmp_path):
    tokenizer_file = tmp_path / "tokenizer.json"
    tokenizer_file.write_text(json.dumps({"added_tokens": [{"id": 5, "content": "<|endoftext|>"}]}))
    (tmp_path / "tokenizer_config.json").write_text("{}")  # without it `transformers` takes a GPT-2's tokenizer
    save_model(random_model(), tmp_path / "model", dtype="float32", tokenizer_file=tokenizer_file)
    save_model(
        random_model(1), tmp_path / "model", dtype="float32", tokenizer_file=tmp_path / "model" / "tokenizer.json"
    )
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "model" / name).read_text())["eos_token_id"] == 5
    assert_same(load_model(tmp_path / "model"), random_model(1))


@pytest.mark.parametrize(
    ("added", "words"),
    [([], "no <|endoftext|>"), ([{"id": 97, "content": "<|endoftext|>"}], "id 97, but the model has 97 tokens")],
)
def test_foreign_tokenizer_is_refused(tmp_path, added, words):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    with pytest.raises(DataError) as error:
        save_model(random_model(), tmp_path / "m", dtype="float32", tokenizer_file=tmp_path / "tokenizer.json")
    assert words in str(error.value)


def test_a_failed_write_leaves_the_old_weights(folder, monkeypatch):
    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match="disk full"):
        save_model(random_model(1), folder, dtype="float32", tokenizer_file=None)
    assert_same(load_model(folder), random_model())


# Errors


def drop(key):
    return lambda tensors: {k: v for k, v in tensors.items() if k != key}


def put(key, value):
    return lambda tensors: tensors | {key: value}


H0 = "transformer.h.0"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop(f"{H0}.mlp.c_fc.bias"), ["missing", f"{H0}.mlp.c_fc.bias"]),
        (drop("transformer.wpe.weight"), ["missing", "transformer.wpe.weight"]),
        (put("transformer.h.2.ln_1.weight", torch.ones(32)), ["unexpected", "h.2.ln_1.weight"]),
        (put("transformer.h.2.attn.bias", torch.ones(1)), ["unexpected", "h.2.attn.bias"]),
        (put("score.weight", torch.ones(2, 32)), ["unexpected", "score.weight"]),
        (put("wpe.weight", torch.ones(24, 32)), ["twice", "wpe.weight"]),
        (put("lm_head.weight", torch.ones(97, 32)), ["lm_head.weight", "differs from 'wte.weight'"]),
        (put("lm_head.weight", torch.ones(98, 32)), ["lm_head.weight", "differs from 'wte.weight'"]),
        (put("transformer.wpe.weight", torch.ones(25, 32)), ["wpe.weight", "[25, 32]", "[24, 32]"]),
        (put(f"{H0}.attn.c_attn.weight", torch.ones(96, 32)), ["h.0.attn.c_attn.weight", "[96, 32]", "[32, 96]"]),
        (put("transformer.ln_f.bias", torch.ones(32, dtype=torch.int8)), ["ln_f.bias", "torch.int8", "float32"]),
        (put("transformer.ln_f.bias", torch.full((32,), torch.nan)), ["ln_f.bias", "not finite"]),
    ],
)
def test_misfit_tensors_are_named(folder, edit, words):
    edit_tensors(folder, edit)
    with pytest.raises(DataError) as error:
        load_model(folder)
    for word in (*words, "model.safetensors"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("model_type", "llama", "'gpt2'"),
        ("model_type", ..., "'gpt2'"),
        ("activation_function", "gelu", "'gelu_new' or 'gelu_pytorch_tanh'"),
        ("scale_attn_weights", False, "True"),
        ("scale_attn_by_inverse_layer_idx", True, "False"),
        ("reorder_and_upcast_attn", True, "False"),
        ("add_cross_attention", True, "False"),
        ("tie_word_embeddings", False, "True"),
        ("n_inner", 64, "null or 128"),
        ("n_head", 5, "a divisor of n_embd=32"),
        ("n_layer", 0, "a whole number above 0"),
        ("n_embd", "32", "a whole number above 0"),
        ("n_positions", ..., "a whole number above 0"),
        ("vocab_size", True, "a whole number above 0"),
        ("layer_norm_epsilon", 0.0, "a number above 0"),
    ],
)
def test_config_that_cannot_be_honoured_is_named(folder, key, value, allowed):
    edit_config(folder, **{key: value})
    with pytest.raises(DataError) as error:
        load_model(folder)
    message = str(error.value)
    assert (f"{key} is missing" if value is ... else f"{key}={value!r}") in message
    assert message.endswith(f"allowed: {allowed}")
    assert "config.json" in message


def test_config_that_says_the_same_in_other_words_is_read(folder):
    defaults = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "n_inner")
    edit_config(folder, activation_function="gelu_pytorch_tanh", n_ctx=24, **dict.fromkeys(defaults, ...))
    assert_same(load_model(folder), random_model())
    edit_config(folder, n_inner=128)
    assert_same(load_model(folder), random_model())


def test_config_with_a_byte_order_mark_is_read(folder):
    path = folder / "config.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert_same(load_model(folder), random_model())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: no such file; copy the model's {name} there"):
        load_model(folder)


def test_pickle_only_and_sharded_folders_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"pickled weights only.*from_pretrained"):
        load_model(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match=r"in several files; type `python -c .*save_pretrained\('NEW'\)"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"model\.safetensors: truncated or not safetensors.*copy it again"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json: no JSON.*copy it again"):
        load_model(folder)


# Fetching


def test_fetch_returns_a_folder_as_it_is(folder, monkeypatch):
    assert fetch(str(folder), None) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert fetch("~/model", None) == folder
    with pytest.raises(DataError, match="local folder and has no revision 'main'"):
        fetch(str(folder), "main")


@pytest.mark.parametrize("name", ["/no/such", "./no/such", "~/such", "no/such/folder", "folder", "../such"])
def test_fetch_takes_no_missing_path_for_a_repository(name):
    with pytest.raises(DataError, match="no such folder, and not a Hub id"):
        fetch(name, None)


def test_fetch_takes_no_misspelt_run_for_a_repository(tmp_path, monkeypatch):
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="outputs/run1: no such folder"):
        fetch("outputs/run1", None)


def test_fetch_downloads_only_what_is_read(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: calls.append((a, k)) or str(folder))
    assert fetch("owner/name", "v1") == folder
    [(args, options)] = calls
    assert args == ("owner/name",)
    assert options["revision"] == "v1"
    assert "model.safetensors" in options["allow_patterns"]
    assert not any("bin" in pattern or "*" in pattern for pattern in options["allow_patterns"])


def test_a_repository_of_pickles_is_refused_with_the_conversion(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    (folder / "model.safetensors").unlink()  # what no pattern allows is not downloaded
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: str(folder))
    with pytest.raises(DataError, match=r"owner/name: no model\.safetensors .*from_pretrained\('owner/name'\)"):
        fetch("owner/name", None)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """The Hub's cache, empty, with nothing beyond it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_fetch_offline_says_what_to_type(hub_cache):
    command = r"hf download owner/name --revision v1 --local-dir FOLDER"
    with pytest.raises(DataError, match=rf"owner/name: .*HF_HUB_OFFLINE is set; unset it, or .*type `{command}`"):
        fetch("owner/name", "v1")


def test_fetch_offline_takes_the_pinned_snapshot_of_the_cache(hub_cache, folder):
    commits = ["0" * 40, "1" * 40]
    for commit in commits:
        shutil.copytree(folder, hub_cache / "models--owner--name" / "snapshots" / commit)
    refs = hub_cache / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commits[1])
    assert [fetch("owner/name", revision).name for revision in (commits[0], None)] == commits


def test_any_refusal_of_the_hub_is_one_line(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*args, **options):
        raise RuntimeError("peer closed connection\nmore")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(DataError, match=r"no download \(peer closed connection\); .*type `hf download owner/name"):
        fetch("owner/name", None)


# Folders as the models are released: bfloat16, tied head, dropout 0.1 in the config, GPT-2's tokenizer files


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("released")
    texts = [f"P: 8/8/8/8 w - - 0 1 M: e2e{i} E: 0.{i} B: e2e4" for i in range(10)]
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, 300, special_tokens=[tokenizers.END_OF_TEXT], show_progress=False)
    learned.save_model(str(path))
    learned.save(str(path / "tokenizer.json"))
    words = tokenizers.Tokenizer.from_folder(path)
    config = transformers.GPT2Config(
        **SMALL | {"vocab_size": words.vocab_size}, bos_token_id=words.eot_id, eos_token_id=words.eot_id
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def released(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "released")


def load(path: Path, parameters: int | None = None) -> policies.Pretrained:
    return policies.pretrained(path=str(path), revision=None, parameters=parameters)


def test_a_released_folder_is_read_whole(released):
    files = {"config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer.json", "vocab.json"}
    assert files <= {path.name for path in released.iterdir()}
    said = json.loads((released / "config.json").read_text())
    assert (said["resid_pdrop"], said["attn_pdrop"], said.get("dtype", said.get("torch_dtype"))) == (
        0.1,
        0.1,
        "bfloat16",
    )
    found = load(released)
    assert {parameter.dtype for parameter in found.model.parameters()} == {torch.float32}
    assert load(released, parameter_count(found.model)).tokenizer.encode("e2e4") == found.tokenizer.encode("e2e4")
    with torch.no_grad():  # R01: the policy in training and the reference are one function
        train, evaluate = found.model.train().hidden(TOKENS), load(released).model.eval().hidden(TOKENS)
    assert torch.equal(train, evaluate)
    (released / "tokenizer.json").unlink()
    assert load(released).tokenizer.encode("P: e2e4") == found.tokenizer.encode("P: e2e4")


def without(*names):
    return lambda path: [(path / name).unlink() for name in names]


def pickled(path: Path) -> None:
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def foreign_tokenizer(path: Path) -> None:
    tokenizers.square_aware().save(path)


def retensored(key, value):
    return lambda path: edit_tensors(path, put(key, value))


MISFITS = {
    "no config": (without("config.json"), r"config\.json: no such file; copy the model's config\.json there"),
    "no weights": (without("model.safetensors"), r"model\.safetensors: no such file"),
    "no tokenizer": (without("tokenizer.json", "vocab.json"), "no tokenizer.json, and not both vocab.json and merges"),
    "pickle": (pickled, r"pickled weights only; .*type `python -c .*save_pretrained\('NEW'\)"),
    "shape": (
        retensored(f"{H0}.mlp.c_fc.weight", torch.ones(128, 32)),
        r"'h\.0\.mlp\.c_fc\.weight' has shape \[128, 32",
    ),
    "truncated": (
        lambda path: os.truncate(path / "model.safetensors", 5000),
        r"truncated or not safetensors .*5000 bytes\); copy it again",
    ),
    "nan": (retensored("transformer.ln_f.bias", torch.tensor([torch.nan] * 32)), "'ln_f.bias' has values that are not"),
    "overflow": (
        lambda path: edit_tensors(
            path, lambda t: {k: v.float() * (3e30 if "ln_f" in k else 1e9) for k, v in t.items()}
        ),
        "its weights are finite, but not their logits",
    ),
    "vocabulary": (foreign_tokenizer, r"its tokenizer goes up to token 3997, but the model has \d+ tokens; copy the"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_is_wrong_with_a_released_folder_is_one_line(name, released):
    damage, words = MISFITS[name]
    damage(released)
    with pytest.raises(DataError, match=words) as error:
        load(released)
    assert "\n" not in str(error.value)
    assert str(released) in str(error.value)


def sharded(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(path)
    (path / "model.safetensors").unlink()
    model.save_pretrained(path, max_shard_size="50KB")


@pytest.mark.parametrize("damage", [pickled, sharded])
def test_the_conversion_that_is_told_makes_the_folder_readable(damage, released, tmp_path, monkeypatch):
    before = load(released)
    damage(released)
    with pytest.raises(DataError) as error:
        load(released)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r'python -c "(.*)"', str(error.value))[1], {})
    after = load(tmp_path / "NEW")
    assert torch.equal(after.model.wte.weight, before.model.wte.weight)
    assert after.tokenizer.encode("P: e2e4 M:") == before.tokenizer.encode("P: e2e4 M:")


def test_another_parameter_count_is_refused(released):
    count = parameter_count(load(released).model)
    with pytest.raises(ConfigError, match=rf"model\.parameters=124439808: .* has {count}; allowed: {count}, or null"):
        load(released, 124_439_808)


def test_a_run_stands_for_its_newest_checkpoint(released, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("{}")
    with pytest.raises(DataError, match="a run without a checkpoint yet"):
        load(run)
    for step in (9, 10):
        shutil.copytree(released, run / "checkpoints" / f"step-{step:06d}" / "model")
        (run / "checkpoints" / f"step-{step:06d}" / "trainer.json").write_text("{}")
    newest = run / "checkpoints" / "step-000010"
    assert policies.model_folder(run) == policies.model_folder(newest) == newest / "model"
    assert policies.model_folder(newest / "model") == newest / "model"
    assert load(run).model.config == load(released).model.config
    with pytest.raises(DataError, match="checkpoints: no model in it; name a run, a checkpoint in it"):
        load(run / "checkpoints")


# Numbers that a wrong loader would get wrong


def test_gpt2_small_has_124_439_808_parameters():
    with torch.device("meta"):
        model = GPT2(GPT2Config(n_layer=12, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257))
    assert parameter_count(model) == 124_439_808
    assert parameter_count(random_model()) == sum(t.numel() for t in random_model().state_dict().values())


@pytest.mark.parametrize(("dtype", "moves"), [(torch.float32, True), (torch.bfloat16, False)])
def test_one_small_step_moves_float32_weights_and_not_bfloat16_ones(tmp_path, dtype, moves):
    """R02: at a rate of 1e-7 an update is below half a unit in the last place of nearly every bfloat16 weight."""
    save_model(random_model(), tmp_path, dtype="bfloat16", tokenizer_file=None)
    model = load_model(tmp_path).to(dtype)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, weight_decay=0.0)
    logits = model.logits(model.hidden(TOKENS)).float()
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    optimizer.step()
    large = {name: parameter.grad.abs() > 1e-6 for name, parameter in model.named_parameters()}
    changed = sum(int((p != before[name])[large[name]].sum()) for name, p in model.named_parameters())
    total = sum(int(mask.sum()) for mask in large.values())
    assert total > 0.5 * parameter_count(model)
    assert (changed / total >= 0.99) == moves
