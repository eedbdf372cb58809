"""What the options of conf/model build: a GPT-2 and its tokenizer, from files or newly made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from rookexp import checkpoint, chess_text, generate, tokenizers
from rookexp.config import check
from rookexp.errors import ConfigError, DataError
from rookexp.models import hub, weights
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.objectives.rollouts import completion_texts
from rookexp.run_folder import run_info, runs
from rookexp.tokenizers import Tokenizer
from rookexp.types import Autocast, Prompt

EMBEDDING_STD = 0.02  # of GPT-2's initial weights
PROBED, PROBE_TOKENS = 4, 160  # prompts of each kind that `sanity_warnings` answers, and tokens of the longest answer
QUOTED = 40  # characters of an answer that are shown
KNOWN = {"P": "93 of 100", "A": "all"}  # how many of the released model's greedy answers have the format


@dataclass(frozen=True, slots=True)
class Pretrained:
    """The model and the tokenizer that a run starts from."""

    model: GPT2
    tokenizer: Tokenizer


def pretrained(*, path: str, revision: str | None, parameters: Annotated[int, Ge(1)] | None) -> Pretrained:
    """Model and tokenizer of a folder or a Hub repository in Hugging Face layout, or of a run's newest checkpoint.

    Raises: DataError when there is none or a file cannot be used; ConfigError when the model has another number of
    `parameters` than was expected.
    """
    policy = load(model_folder(hub.fetch(path, revision)))
    found = weights.parameter_count(policy.model)
    if parameters not in (None, found):
        raise check.refusal("model.parameters", parameters, f"{path} has {found}; allowed: {found}, or null for any")
    return policy


def load(folder: Path) -> Pretrained:
    """Model and tokenizer of a folder in Hugging Face layout.

    Raises: DataError when a file cannot be used, and for a tokenizer with more tokens than the model.
    """
    model, tokenizer = weights.load_model(folder), Tokenizer.from_folder(folder)
    highest, size = max(tokenizer.backend.get_vocab().values()), model.config.vocab_size
    if highest >= size:
        raise DataError(
            f"{folder}: its tokenizer goes up to token {highest}, but the model has {size} tokens; copy the tokenizer "
            "files of this very model there"
        )
    return Pretrained(model, tokenizer)


def sanity_warnings(policy: Pretrained, prompts: Sequence[Prompt], autocast: Autocast) -> list[str]:
    """Warnings: one if some prompts' tokens do not decode to their text, as when a character has no token, and one for
    each kind of prompt, P or A, if fewer than half of a few greedy answers have its format.

    A model with such answers has hardly learned the task; with random weights no answer has the format.
    """
    found = []
    read = [(prompt.text, policy.tokenizer.decode(prompt.ids)) for prompt in prompts]
    if unlike := [(asked, spelled) for asked, spelled in read if asked != spelled]:
        asked, spelled = unlike[0]
        found.append(
            f"the tokens of {len(unlike)} of {len(prompts)} prompts spell another text: of {asked!r} is left "
            f"{spelled!r}; is this the model's own tokenizer?"
        )
    for kind, known in KNOWN.items():
        room = [p for p in prompts if p.task == kind and len(p.ids) < policy.model.config.n_positions]
        probed = room[:PROBED]
        if not probed:
            continue
        with autocast():
            samples = generate.greedy(policy.model, [p.ids for p in probed], PROBE_TOKENS, policy.tokenizer.eot_id)
        texts = completion_texts(samples, policy.tokenizer)
        wrong = [text for prompt, text in zip(probed, texts, strict=True) if not is_well_formed(prompt, text)]
        if 2 * len(wrong) > len(probed):
            found.append(
                f"{len(probed) - len(wrong)} of {len(probed)} greedy answers have the format of {kind}: "
                f"{wrong[0][:QUOTED]!r}; is this the right model? Of the released one, {known} have it"
            )
    return found


def is_well_formed(prompt: Prompt, text: str) -> bool:
    """Whether a completion has the format that its prompt asks for, whatever it says."""
    if prompt.task == "A":
        return chess_text.parse_a_completion(text).valid
    return chess_text.p_answer(prompt.text, text).well_formed


def model_folder(path: Path) -> Path:
    """The model's folder in a run folder (that of its newest checkpoint) or in a checkpoint; else `path` itself.

    Raises: DataError for a run without a checkpoint, for a folder of runs, and for one without a model.
    """
    if (path / checkpoint.TRAINER).is_file():
        return path / checkpoint.MODEL
    is_run = (path / checkpoint.FOLDER).is_dir() or (path / run_info.CONFIG).is_file()
    if not is_run or (path / "config.json").is_file():
        if path.is_dir() and not (path / "config.json").is_file():
            if held := runs.find(path):
                raise DataError(f"{path}: a folder of runs; name one, as {held[0]}")
            if not any(path.glob("*model*")):
                raise DataError(f"{path}: no model in it; name a run, a checkpoint in it, or a Hugging Face folder")
        return path
    newest = checkpoint.latest(path)
    if newest is None:
        raise DataError(
            f"{path}: a run without a checkpoint yet (save_every says when it writes one); name another model"
        )
    return newest / checkpoint.MODEL


def retokenized(*, path: str, revision: str | None, tokenizer: str) -> Pretrained:
    """A pretrained model with another tokenizer: that of a folder, or a new one as in `random_gpt2`.

    A token that is also in the old vocabulary keeps its embedding; any other starts with the mean embedding of the old
    tokens that its text has, or of all old tokens if it has no text.

    Raises: DataError when a folder has no such files, or they cannot be used.
    """
    old = pretrained(path=path, revision=revision, parameters=None)
    words = tokenizer_of(tokenizer)
    model = GPT2(replace(old.model.config, vocab_size=words.vocab_size))
    state = old.model.state_dict()
    vectors, known = old.model.wte.weight.detach(), old.tokenizer.backend.get_vocab()
    rows = []
    for i in range(words.vocab_size):
        word = words.backend.id_to_token(i)
        ids = [known[word]] if word in known else old.tokenizer.encode(words.decode([i]))
        rows.append(vectors[ids or slice(None)].mean(0))
    state["wte.weight"] = torch.stack(rows)
    model.load_state_dict(state)
    return Pretrained(model, words)


def random_gpt2(
    *,
    tokenizer: str,
    n_layer: Annotated[int, Ge(1)],
    n_head: Annotated[int, Ge(1)],
    n_embd: Annotated[int, Ge(1)],
    n_positions: Annotated[int, Ge(1)],
    spelled: bool,
    seed: Annotated[int, Ge(0)],
) -> Pretrained:
    """A GPT-2 with random weights and the tokenizer of a folder, or a new one: `square_aware` or `characters`.

    `spelled`: tokens that share characters begin with embeddings that share parts (see `spell`).

    Raises: ConfigError when the heads do not divide the width; DataError for a folder without tokenizer files.
    """
    if n_embd % n_head:
        raise check.refusal("model.n_head", n_head, f"allowed: a divisor of model.n_embd={n_embd}")
    words = tokenizer_of(tokenizer)
    sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "n_positions": n_positions}
    model = GPT2(GPT2Config(vocab_size=words.vocab_size, **sizes))
    model.init_weights(torch.Generator().manual_seed(seed))
    if spelled:
        spell(model.wte.weight, words.spellings(), torch.Generator().manual_seed(seed + 1))
    return Pretrained(model, words)


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a folder, or a new one: `square_aware` or `characters`.

    Raises: ConfigError if there is no such folder; DataError if it has no tokenizer.
    """
    made = {"square_aware": tokenizers.square_aware, "characters": tokenizers.characters}
    folder = Path(name).expanduser()
    if name not in made and not folder.is_dir():
        raise ConfigError(f"model.tokenizer={name}: no such folder; allowed: {', '.join(made)}, or a folder with one")
    return made[name]() if name in made else Tokenizer.from_folder(folder)


@torch.no_grad()
def spell(embedding: Float[Tensor, "v d"], spellings: Sequence[str], generator: torch.Generator) -> None:
    """Adds a vector for each of a token's characters to its embedding, and keeps the scale.

    A king on e1, the move square e1 and a king anywhere then have parts in common before any training, which would take
    long to learn token by token: after 500 steps of `rookexp.pretrain` the loss was 0.07 nats per token lower.
    """
    letters = sorted(set("".join(spellings)))
    vectors = torch.stack([torch.randn(embedding.shape[1], generator=generator) for _ in letters])
    places = {letter: i for i, letter in enumerate(letters)}
    for row, text in enumerate(spellings):
        if text:
            parts = sum(vectors[places[letter]] for letter in text)
            embedding[row] = (embedding[row] + EMBEDDING_STD * parts) / (1 + len(text)) ** 0.5
