"""GPT-2 in pure PyTorch, without dropout: hidden states for training, a key-value cache for decoding.

Source: Radford et al. 2019; layout and tanh-GELU as in the Hugging Face implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from rookexp.compiling import fusible, kernels_for
from rookexp.models.kv_cache import KVCache
from rookexp.models.packed import CopiedLinear, packing, product_dtype, with_packed_layers
from rookexp.models.replays import Replays
from rookexp.models.shared_prefix import SharedPrefix
from rookexp.models.static_cache import StaticCache

Attend = Callable[[int, Tensor], Tensor]  # a block's index and its qkv (*n 3D) to its attention output (*n D)


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """Sizes, under the names of the checkpoint's config.json."""

    n_layer: int  # blocks
    n_head: int  # attention heads; divides n_embd
    n_embd: int  # width D
    n_positions: int  # longest sequence in tokens
    vocab_size: int  # V
    layer_norm_epsilon: float = 1e-5  # epsilon of every layer norm


def attention(q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "n h t w"]:
    """Causal attention: each head's output for each token, from itself and earlier tokens.

    On a CPU in at least fp32: its bf16 kernel is slower, above all in backward (T 130, width 32: 43 ms against 18 ms,
    one thread), and its rounding would make the training forward differ from cached decoding.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(q.to(exact), k.to(exact), v.to(exact), is_causal=True).to(q.dtype)


class Block(nn.Module):
    """Pre-norm attention and MLP. Sums are left to the layer norm that reads them, which may be the next block's."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        width = config.n_embd
        self.ln_1 = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    @fusible
    def qkv(self, x: Float[Tensor, "*n d"], more: Float[Tensor, "*n d"] | None) -> tuple[Tensor, Tensor]:
        """The block's input x + more, and all heads' queries, keys and values, side by side (*n, 3D)."""
        x, normed = added_and_normed(x, more, self.ln_1)
        return x, self.c_attn(normed)

    @fusible
    def finish(self, x: Float[Tensor, "*n d"], attended: Float[Tensor, "*n d"]) -> tuple[Tensor, Tensor]:
        """The block's output as a sum of two, from its input and the attention output with heads joined."""
        x, normed = added_and_normed(x, self.attn_proj(attended), self.ln_2)
        return x, self.mlp_proj(F.gelu(self.c_fc(normed), approximate="tanh"))


def added_and_normed(
    x: Float[Tensor, "*n d"], more: Float[Tensor, "*n d"] | None, norm: nn.LayerNorm
) -> tuple[Float[Tensor, "*n d"], Float[Tensor, "*n d"]]:
    """x + more, and its layer norm: without a gradient one kernel, where a GPU has it."""
    if more is None:
        return x, norm(x)
    kernels = None if torch.is_grad_enabled() or torch.compiler.is_compiling() else kernels_for(x)
    if kernels is not None:
        return kernels.add_and_norm(x, more, norm.weight, norm.bias, norm.eps)
    x = x + more
    return x, norm(x)


def joined(heads: Float[Tensor, "n h t w"]) -> Float[Tensor, "n t d"]:
    """The heads' outputs for each token, concatenated."""
    return heads.transpose(1, 2).flatten(2)


class GPT2(nn.Module):
    """A GPT-2 whose output head is its token embedding; rows are right-padded, so position = column."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        # nn.Embedding(...) would draw weights only to be overwritten, and on "meta" import torch's compiler: 2 s.
        self.wte = nn.Embedding.from_pretrained(torch.zeros(config.vocab_size, config.n_embd), freeze=False)
        self.wpe = nn.Embedding.from_pretrained(torch.zeros(config.n_positions, config.n_embd), freeze=False)
        blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.blocks = cast("Sequence[Block]", blocks)  # what iterating yields; ModuleList's type does not say so
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.packed_head: nn.Module | None = None  # in a copy for decoding, computes the logits
        self.replays: Replays | None = None  # recorded decoding steps, where the hardware supports them

    @property
    def head_weight(self) -> Float[Tensor, "v d"]:
        """The head's matrix: logits = hidden @ head_weight.T."""
        return self.wte.weight

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialises as GPT-2 was: normal, std 0.02, residual projections 0.02 / sqrt(2 L); biases 0, norms 1."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "ln_" in name:
                nn.init.ones_(parameter)
            else:
                std = 0.02 / (2 * self.config.n_layer) ** 0.5 if "_proj" in name else 0.02
                nn.init.normal_(parameter, std=std, generator=generator)

    def hidden(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        """Final hidden states; hidden[:, t] predicts token t + 1. Padding after a row's end does not affect the row."""

        def attend(layer: int, qkv: Float[Tensor, "n t k"]) -> Float[Tensor, "n t d"]:
            q, k, v = qkv.unflatten(2, (3, self.config.n_head, -1)).permute(2, 0, 3, 1, 4)  # (N, H, T, D/H) each
            return joined(attention(q, k, v))

        return self.ln_f(self._through(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]], attend))

    def hidden_after(
        self,
        prompts: Int[Tensor, "p s"],
        lengths: Int[Tensor, " p"],
        owner: Int[Tensor, " n"],
        completions: Int[Tensor, "n c"],
        sizes: Int[Tensor, " n"],
    ) -> Float[Tensor, "n c d"]:
        """Final hidden states that predict completion tokens: [:, 0] is the prompt's last, [:, j] token j - 1's.

        Row n continues prompt `owner[n]` by `sizes[n]` tokens; the output after those is arbitrary. A prompt is
        computed once, however many rows continue it, and padding at most inside attention: prompts and rows of unlike
        lengths cost no more than their tokens. Equal to `hidden` on the joined rows, up to rounding.
        """
        rows = SharedPrefix(prompts, lengths, owner, completions, sizes, self.config.n_head)
        x = self.wte(rows.tokens) + self.wpe(rows.positions)  # (T, D)
        return rows.apart(self.ln_f(self._through(x, lambda layer, qkv: rows.attend(qkv))))

    def logits(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Logits over the vocabulary."""
        head = self.packed_head
        logits: Tensor = F.linear(hidden, self.head_weight) if head is None else head(hidden)
        return logits

    def packed(self) -> GPT2:
        """A copy that decodes faster while the weights do not change; this model itself where no copy is faster."""
        if self.replays is not None:
            dtype = product_dtype(self.head_weight.device.type)
            return self if dtype is None else self.replays.twin(dtype, partial(self._copied, dtype))
        pack = packing(self.head_weight)
        if pack is None:
            return self
        twin = cast("GPT2", with_packed_layers(self, pack))
        twin.packed_head = pack(self.head_weight, None)
        return twin

    def _copied(self, dtype: torch.dtype) -> GPT2:
        """A copy whose matrix products use their own weights in `dtype`, whatever the caller's autocast."""
        twin = cast("GPT2", with_packed_layers(self, partial(CopiedLinear, dtype=dtype)))
        twin.packed_head = CopiedLinear(self.head_weight, None, dtype)
        return twin

    def prefill(
        self, tokens: Int[Tensor, "p t"], lengths: Int[Tensor, " p"], group_size: int, capacity: int
    ) -> tuple[Float[Tensor, "p d"], KVCache]:
        """Each prompt's hidden state at its last token, and a KV cache for `group_size` rows per prompt.

        The cache has room for `capacity` more tokens per row.
        """
        each = torch.arange(len(tokens), device=tokens.device)
        drawn_next = tokens[:, :1], torch.ones_like(lengths)  # a placeholder: the next token is predicted, not read
        prompts = SharedPrefix(tokens, lengths, each, *drawn_next, self.config.n_head)
        kept = []

        def attend(layer: int, qkv: Float[Tensor, "t k"]) -> Float[Tensor, "t d"]:
            kept.append(prompts.keys_and_values(qkv))
            return prompts.attend(qkv)

        x = self._through(self.wte(prompts.tokens) + self.wpe(prompts.positions), attend)  # (T, D)
        keys, values = torch.stack(kept, 1)
        return self.ln_f(prompts.apart(x)[:, 0]), KVCache(keys, values, lengths, group_size, capacity)

    def decode(self, tokens: Int[Tensor, " n"], cache: KVCache | StaticCache) -> Float[Tensor, "n d"]:
        """The hidden state after one more token per row; the tokens are added to the cache."""
        # A finished row may stay in the batch for a while and run past the last position; its output is not read.
        positions = cache.positions.clamp(max=self.config.n_positions - 1)
        x = self._through((self.wte(tokens) + self.wpe(positions))[:, None], cache.attend)
        cache.step()
        return self.ln_f(x[:, 0])

    def decode_ahead(self, tokens: Int[Tensor, "n m"], cache: KVCache) -> Float[Tensor, "n m d"]:
        """The hidden states after M more tokens per row; `cache.advance` must then say how many of them to keep."""
        ahead = torch.arange(tokens.shape[1], device=tokens.device)
        columns = cache.positions[:, None] + ahead  # (N, M)
        places = columns - cache.lengths[cache.owner, None]
        x = self.wte(tokens) + self.wpe(columns.clamp(max=self.config.n_positions - 1))
        return self.ln_f(self._through(x, lambda layer, qkv: cache.attend_ahead(layer, qkv, places)))

    def _through(self, x: Float[Tensor, "*n d"], attend: Attend) -> Float[Tensor, "*n d"]:
        """The embeddings `x` plus what each block adds: attention to whatever `attend` keeps, then the MLP."""
        more = None
        for layer, block in enumerate(self.blocks):
            x, qkv = block.qkv(x, more)
            x, more = block.finish(x, attend(layer, qkv))
        return x if more is None else x + more
