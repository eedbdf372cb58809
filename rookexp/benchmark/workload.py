"""What both sides work on: a model's folder, prompts of words, and a reward that costs next to nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge

from rookexp import ops, policies
from rookexp.models import weights
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.tokenizers import END_OF_TEXT, Tokenizer
from rookexp.types import Prompt, Scores

NANO = Path(policies.__file__).parent / "assets" / "rook_nano" / "config.json"
POSITIONS = 1024  # n_positions of every size, so that `scaling` has room
PROMPTS = "prompts.json"
DROPOUT = 0.1  # as in GPT-2's config.json; only TRL applies it
NEVER = -40.0  # logit of an end-of-text that is never drawn


def config_of(size: str) -> GPT2Config:
    """The model configuration of a size by its name."""
    nano = weights.read_config(NANO)
    layers, heads, width, vocabulary = {
        "tiny": (2, 2, 32, 97),
        "1m": (4, 4, 128, 1024),
        "nano": (nano.n_layer, nano.n_head, nano.n_embd, nano.vocab_size),
        "4m": (4, 4, 256, 4096),
        "124m": (12, 12, 768, 50257),
    }[size]
    return GPT2Config(n_layer=layers, n_head=heads, n_embd=width, n_positions=POSITIONS, vocab_size=vocabulary)


def make(folder: Path, size: str, *, prompts: int, lengths: Sequence[int], end_rate: float, seed: int) -> list[int]:
    """Writes model, tokenizer and prompts in Hugging Face layout; returns the length of each prompt in tokens."""
    config = config_of(size)
    folder.mkdir(parents=True)
    _write_tokenizer(folder, config.vocab_size)
    weights.save_model(
        random_model(config, end_rate, seed), folder, dtype="float32", tokenizer_file=folder / "tokenizer.json"
    )
    path = folder / "config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    about |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), DROPOUT)
    path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    texts = ragged_texts(prompts, lengths, config.vocab_size, seed)
    (folder / PROMPTS).write_text(json.dumps(texts), encoding="utf-8")
    return [len(text.split()) for text in texts]


def random_model(config: GPT2Config, end_rate: float, seed: int) -> GPT2:
    """An untrained GPT-2, except that its end-of-text, token 0, has about the probability `end_rate`.

    With an `end_rate` of 0 that is e^-40 times any other token's. The weights alone do it, at no cost to either side.
    """
    model = GPT2(config)
    model.init_weights(torch.Generator().manual_seed(ops.seed_of(seed, "weights")))
    logit = math.log(end_rate / (1 - end_rate) * config.vocab_size) if end_rate else NEVER
    with torch.no_grad():
        model.ln_f.bias.fill_(1.0)  # a normed vector has mean 0, so with this bias a constant row's logit is its sum
        model.wte.weight[0] = logit / config.n_embd
    return model


def ragged_texts(count: int, lengths: Sequence[int], vocabulary: int, seed: int) -> list[str]:
    """Prompts of random words; the shortest lengths are the most frequent (31 to 108 tokens have the mean 60)."""
    draw = torch.Generator().manual_seed(ops.seed_of(seed, "prompts"))
    shortest, longest = lengths
    sizes = (shortest + (longest - shortest) * torch.rand(count, generator=draw) ** (5 / 3)).round().int().tolist()
    return [
        " ".join(f"w{word}" for word in torch.randint(1, vocabulary, (size,), generator=draw).tolist())
        for size in sizes
    ]


def worth(text: str) -> float:
    """The reward of a completion in [0, 1]: its share of words with an even number."""
    words = text.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


class EvenShare:
    """`worth` as a Reward of rookexp."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """The worth of each completion."""
        return Scores(torch.tensor([worth(text) for text in texts]), {})


class Words:
    """A task with the prompts of a workload's folder, `prompts` of them per step, in order and over again."""

    def __init__(self, *, folder: str, prompts: Annotated[int, Ge(1)], tokenizer: Tokenizer) -> None:
        texts = read_prompts(Path(folder))
        self.asked = [Prompt(text, tuple(tokenizer.encode(text)), None, "words") for text in texts]
        self.per_step = prompts

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step."""
        first = step * self.per_step % len(self.asked)
        return tuple(self.asked[first : first + self.per_step])

    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts of the first step."""
        return self.select(0)


def read_prompts(folder: Path) -> list[str]:
    """The texts of a workload's prompts."""
    texts: list[str] = json.loads((folder / PROMPTS).read_text(encoding="utf-8"))
    return texts


def _write_tokenizer(folder: Path, size: int) -> None:
    """Writes a tokenizer of whole words, w1 w2 ..., whose token 0 is the end-of-text."""
    words = [END_OF_TEXT, *(f"w{i}" for i in range(1, size))]
    end = {"id": 0, "content": END_OF_TEXT, "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    nothing = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    whole = {
        "version": "1.0",
        **dict.fromkeys(nothing),
        "added_tokens": [end],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": END_OF_TEXT},
    }
    (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    Tokenizer.from_folder(folder).save(folder)
