"""What one GRPO step computes, counted: tokens through the blocks, rows through the head, decode calls, bytes.

Counted where PyTorch dispatches, so whoever computes a token, and however: a product whose rows become 4 D wide is a
token in a block's MLP, one whose rows become V wide is a row of logits. Counts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from rookexp import coefficients
from rookexp.draw import Sampling
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.types import Experience

# No two of D, 4 D, V, the number of rows, a row's length and the sums of tokens are equal.
LAYERS, WIDTH = 2, 20
VOCAB, WIDE_VOCAB = 211, 997
GROUP, NEW, CHUNK = 4, 7, 5
EVEN, RAGGED = (9, 9, 9), (4, 13, 9)  # tokens of the prompts
ROWS = GROUP * len(EVEN)
OWN = ROWS * (NEW - 1)  # tokens of completions that predict another one
FLOAT = 4  # bytes
BLOCK_VECTORS = 53  # D-wide vectors that a token of a pass allocates in a block, backward included: 50, and some room
HEAD_VECTORS = 7  # V-wide vectors that a row of logits allocates: 6.7, and some room


class Counts(TorchDispatchMode):
    """Rows of the products that widen to 4 D and to V, bytes of new tensors, and the largest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.widened = dict.fromkeys((4 * WIDTH, VOCAB, WIDE_VOCAB), 0)
        self.bytes = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, new = ([x for x in tree_iter(part) if isinstance(x, Tensor)] for part in ((args, kwargs), out))
        # Packed weights show no storage; whether there are any depends on the machine.
        old = {x.untyped_storage().data_ptr() for x in given if not x.is_mkldnn}
        for x in new:
            if x.is_mkldnn or x.untyped_storage().data_ptr() in old:
                continue
            size = x.untyped_storage().nbytes()
            self.bytes, self.largest = self.bytes + size, max(self.largest, size)
            rows, width = x.numel() // max(1, x.shape[-1] if x.dim() else 1), x.shape[-1] if x.dim() else 0
            is_product = any(word in func.name() for word in ("mm", "linear", "matmul"))
            from_states = any(y.dim() and y.numel() == rows * WIDTH and y.shape[-1] == WIDTH for y in given)
            if is_product and width in self.widened and from_states:
                self.widened[width] += rows
        return out

    @property
    def tokens(self) -> float:
        """Tokens that went through all blocks."""
        return self.widened[4 * WIDTH] / LAYERS

    @property
    def head_rows(self) -> int:
        """Rows of logits."""
        return self.widened[VOCAB] + self.widened[WIDE_VOCAB]


def counted(act: Callable[[], Any]) -> tuple[Any, Counts]:
    with Counts() as counts:
        return act(), counts


def model(vocab: int = VOCAB) -> GPT2:
    """One that never draws its end-of-text, token 0: its logit is -40."""
    config = GPT2Config(n_layer=LAYERS, n_head=2, n_embd=WIDTH, n_positions=64, vocab_size=vocab)
    made = tiny.policy(config=config)
    with torch.no_grad():
        made.ln_f.weight.fill_(1.0)
        made.ln_f.bias.fill_(1.0)
        made.wte.weight[0] = -40 / WIDTH
    return made


def objective(lengths: Sequence[int], policy: GPT2, beta: float = 0.1) -> Any:
    texts = ["abcdefghijklmnop"[:length] for length in lengths]

    class Names(tiny.Letters):
        def decode(self, ids: Sequence[int]) -> str:
            return "".join(tiny.LETTERS[i % tiny.VOCAB] for i in ids)

    return tiny.grpo(
        policy,
        tokenizer=Names(),
        task=tiny.Ask(texts),
        coefficient=coefficients.FixedKL(coef=beta) if beta else coefficients.NoKL(),
        sampling=Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=NEW),
        group_size=GROUP,
        head_chunk=CHUNK,
        autocast=nullcontext,
    )


def spied(owner: Any, name: str, calls: list[str]) -> None:
    inner = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return inner(*args, **kwargs)

    setattr(owner, name, call)


def collected(lengths: Sequence[int]) -> tuple[Experience, Counts]:
    grpo = objective(lengths, model())
    (experience, metrics), counts = counted(lambda: grpo.collect(0))
    assert metrics["completions/mean_length"] == NEW  # no end-of-text: what follows counts on it
    return experience, counts


def step_counts(lengths: Sequence[int], beta: float, vocab: int) -> Counts:
    """Of collecting, loss, backward and the optimizer's step."""
    policy = model(vocab)
    grpo = objective(lengths, policy, beta)
    trainer = tiny.trainer(policy, grpo, steps=1)
    grpo.loss(grpo.collect(0)[0]).total.backward()  # what is made once in a process is there
    policy.zero_grad()
    _, counts = counted(trainer.fit)
    return counts


def test_sampling_prefills_a_prompt_once_for_its_group_and_feeds_back_all_tokens_but_the_last() -> None:
    _, counts = collected(EVEN)
    assert counts.tokens == sum(EVEN) + OWN
    assert counts.head_rows == len(EVEN) + OWN  # a group's first tokens have the same distribution


def test_sampling_is_one_prefill_and_a_decode_for_each_token_but_the_first() -> None:
    grpo, calls = objective(RAGGED, model()), []
    for name in ("prefill", "decode", "hidden", "hidden_after"):
        spied(grpo.policy, name, calls)
    grpo.collect(0)
    assert calls == ["prefill", *["decode"] * (NEW - 1)]


@pytest.mark.parametrize("beta", [0.1, 0.0])
def test_the_loss_computes_a_prompt_once_for_its_group_and_the_reference_only_if_it_counts(beta: float) -> None:
    experience, _ = collected(EVEN)
    grpo, models = objective(EVEN, model(), beta), 2 if beta else 1
    assert (grpo.reference is None) == (beta == 0)
    _, counts = counted(lambda: grpo.loss(experience))
    assert counts.tokens == models * (sum(EVEN) + OWN)
    assert counts.head_rows == models * ROWS * NEW


def test_of_ragged_prompts_no_padding_is_computed() -> None:
    experience, sampling = collected(RAGGED)
    assert sampling.tokens == sum(RAGGED) + OWN
    _, loss = counted(lambda: objective(RAGGED, model()).loss(experience))
    assert loss.tokens == 2 * (sum(RAGGED) + OWN)
    assert loss.head_rows == 2 * ROWS * NEW


@pytest.mark.parametrize("beta", [0.1, 0.0])
def test_a_step_holds_the_logits_of_a_chunk_at_most_and_computes_them_no_more_than_twice(beta: float) -> None:
    counts = step_counts(EVEN, beta, WIDE_VOCAB)
    sampled, scored = len(EVEN) + OWN, (2 if beta else 1) * ROWS * NEW
    assert sampled + scored <= counts.head_rows <= sampled + 2 * scored
    assert counts.largest <= FLOAT * WIDE_VOCAB * max(ROWS + 1, CHUNK, WIDTH) < FLOAT * WIDE_VOCAB * ROWS * NEW


def test_a_step_allocates_what_its_tokens_and_logits_need() -> None:
    tokens = 3 * (sum(EVEN) + OWN)  # sampling, policy, reference
    logits = len(EVEN) + OWN + 2 * 2 * ROWS * NEW  # of policy and reference, in the loss and again in its backward
    bound = FLOAT * (BLOCK_VECTORS * LAYERS * WIDTH * tokens + HEAD_VECTORS * VOCAB * logits)
    counts = step_counts(EVEN, 0.1, VOCAB)
    assert bound / 2 < counts.bytes <= bound  # below half the bound should be lowered
    assert step_counts(EVEN, 0.1, VOCAB).bytes == counts.bytes  # the same every time
