"""GPT-2's byte-level BPE from files: the ids that the released model was trained on."""

from __future__ import annotations

import json
import re
import shutil
from statistics import mean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookexp.errors import DataError
from rookexp.tokenizers import Tokenizer

EOT = "<|endoftext|>"


@pytest.fixture
def folder(shared_dir):
    path = shared_dir / "gpt2-tokenizer"
    if not path.is_dir():
        pytest.skip(f"{path} is missing")
    return path


@pytest.fixture
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture
def documents(shared_dir) -> list[tuple[str, str]]:
    """FEN and the rest from "M:" on, of each row of the P sample."""
    path = shared_dir / "data" / "rook_val_sample.txt"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    lines = [line for line in path.read_text().splitlines() if line]
    return [(line[3 : line.index("M:")].rstrip(), line[line.index("M:") :].rstrip()) for line in lines]


def test_ids_of_gpt2(tokenizer):
    assert tokenizer.eot_id == 50256
    assert tokenizer.vocab_size == 50257
    assert tokenizer.encode("") == []
    assert tokenizer.encode(" ") == [220]
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode(" M:") == [*tokenizer.encode(" M"), *tokenizer.encode(":")]
    assert len(tokenizer.encode(" M:")) == 2
    # A run of padding is one token a space; the last space belongs to the word after it.
    assert tokenizer.encode("-" + " " * 30 + "M:") == [12, *[220] * 29, *tokenizer.encode(" M:")]


def test_end_of_text_is_never_read_from_text(tokenizer):
    text = f"P: 8/8{EOT}M:"
    ids = tokenizer.encode(text)
    assert tokenizer.eot_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.eot_id, *tokenizer.encode("b")]) == "ab"


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizer):
    """The rows that pad a vocabulary to a round number can be sampled."""
    assert tokenizer.decode([*tokenizer.encode("a"), 50300]) == "a"
    assert isinstance(tokenizer.decode(range(0, 50257, 97)), str)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_statistics_of_policy_documents(tokenizer, documents):
    """Extremes as measured over 500 rows bound the sample's, and its means are close to theirs."""
    counts: dict[str, list[int]] = {"prompt": [], "completion": [], "whole": [], "padded": [], "after": [], "plain": []}
    for fen, rest in documents:
        prompt, padded = f"P: {fen}", f"P: {fen:<90}M:"
        whole = tokenizer.encode(f"P: {fen:<90}{rest}")
        for prefix in (prompt, f"{prompt} ", padded):
            ids = tokenizer.encode(prefix)
            assert whole[: len(ids)] == ids
        counts["prompt"].append(len(tokenizer.encode(prompt)))
        counts["whole"].append(len(whole))
        counts["completion"].append(len(whole) - counts["prompt"][-1])
        counts["padded"].append(len(tokenizer.encode(padded)))
        counts["after"].append(len(whole) - counts["padded"][-1])
        counts["plain"].append(len(tokenizer.encode(" " + " ".join(rest.split()))))
        assert tokenizer.decode(whole) == f"P: {fen:<90}{rest}"
    measured = {
        "prompt": (27, 48, 65), "completion": (81, 98, 124), "whole": (135, 147, 161),
        "padded": (77, 84, 87), "after": (53, 64, 76), "plain": (17, 47, 52),
    }  # fmt: skip
    for name, (low, middle, high) in measured.items():
        assert low <= min(counts[name]) <= max(counts[name]) <= high, name
        assert mean(counts[name]) == pytest.approx(middle, abs=1.5), name


def test_environment_prompts_are_prefixes(tokenizer, shared_dir):
    path = shared_dir / "data" / "opening_positions_sample.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    rows = json.loads(path.read_text())
    lengths = []
    for row in rows:
        ids = tokenizer.encode(row["prompt"])
        completion = f"{row['expected_fen']}+0.001+0+0"
        whole = tokenizer.encode(row["prompt"] + completion)
        assert whole[: len(ids)] == ids
        assert 48 <= len(whole) - len(ids) <= 68
        assert len(whole) <= 176
        lengths.append(len(ids))
    assert 52 <= min(lengths) <= max(lengths) <= 108
    assert mean(lengths) == pytest.approx(70, abs=3)


def test_saved_file_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new")
    again = Tokenizer.from_folder(tmp_path / "new")
    text = f"P: 8/8 w - - 0 1    M: é {EOT}\n"
    assert again.encode(text) == tokenizer.encode(text)
    assert (again.eot_id, again.vocab_size) == (tokenizer.eot_id, tokenizer.vocab_size)
    again.save(tmp_path / "newer")
    assert (tmp_path / "newer" / "tokenizer.json").read_bytes() == (tmp_path / "new" / "tokenizer.json").read_bytes()
    assert not list(tmp_path.glob("*/*.partial"))


def test_transformers_reads_the_saved_folder(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "P: r1b2rk1/pp1n b - - 2 11          M: d2d1  E: -0.16"
    assert reference(text)["input_ids"] == tokenizer.encode(text)
    assert reference.eos_token_id == tokenizer.eot_id


def test_folder_without_files_names_them(tmp_path, folder):
    shutil.copy(folder / "vocab.json", tmp_path)  # half of a pair is nothing
    with pytest.raises(DataError) as error:
        Tokenizer.from_folder(tmp_path)
    for word in (str(tmp_path), "tokenizer.json", "vocab.json", "merges.txt", "copy"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "tokenizer_config.json",
            {"add_prefix_space": True},
            "tokenizer_config.json: add_prefix_space=True is not read",
        ),
        ("tokenizer_config.json", {"add_bos_token": True}, "tokenizer_config.json: add_bos_token=True is not read"),
        ("tokenizer_config.json", {"add_prefix_space": False, "model_max_length": 1024}, None),
        ("added_tokens.json", {"<board>": 50257}, "added_tokens.json: '<board>' is not read beside vocab.json"),
        ("added_tokens.json", {EOT: 50256}, None),
    ],
)
def test_what_a_pair_of_files_does_not_say_is_refused(tmp_path, folder, name, content, words):
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(folder / file, tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    if words is None:
        assert Tokenizer.from_folder(tmp_path).vocab_size == 50257
    else:
        with pytest.raises(DataError, match=re.escape(words)):
            Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("bos", [False, True])
def test_a_tokenizer_that_puts_tokens_around_a_text_is_refused(tmp_path, folder, bos):
    transformers = pytest.importorskip("transformers")
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    transformers.GPT2Tokenizer(**files, add_bos_token=bos).save_pretrained(tmp_path)
    if not bos:
        assert Tokenizer.from_folder(tmp_path).encode("a b") == [64, 275]
    else:
        with pytest.raises(DataError, match=r"tokenizer\.json: its post_processor puts special tokens around a text"):
            Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}'])
def test_broken_file_is_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(DataError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_with_holes_is_as_large_as_its_highest_id(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 3, EOT: 5}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.spellings()) == (6, ["a", "", "", "b", "", ""])
    assert tokenizer.encode("ab") == [0, 3]


def test_vocabulary_without_end_of_text_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=r"no <\|endoftext\|> token"):
        Tokenizer.from_folder(tmp_path)
