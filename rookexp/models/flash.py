"""Attention of packed sequences, some of which continue others, by PyTorch's FlashAttention: no padding, no mask."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rookexp.compiling import fusible

# Since PyTorch 2.10, which has this module, `_flash_attention_forward` takes and returns what is said here.
NEW_ENOUGH = importlib.util.find_spec("torch.nn.attention.varlen") is not None
OLDEST = 8, 0  # compute capability: Ampere
WIDEST = 192  # of a head, which must be a multiple of 8; above it, some cards have no backward


@dataclass(frozen=True, slots=True)
class Spans:
    """Where T tokens lie: P prompts first, then N rows, grouped by the prompt that they continue."""

    ends: Int[Tensor, " pn1"]  # int32, like the others: 0, then where each prompt or row ends
    prompts: Int[Tensor, " p1"]  # the first P + 1 of these
    groups: Int[Tensor, " p1"]  # 0, then where each prompt's rows end among the tokens of all rows
    tokens: int  # of all prompts
    longest: int  # tokens of a prompt or row, or more; like the next two, this only has to be large enough
    longest_prompt: int
    largest_group: int


def usable(qkv: Float[Tensor, "t k"], n_head: int) -> bool:
    """Whether FlashAttention takes such queries, keys and values."""
    width = qkv.shape[1] // 3 // n_head
    if qkv.device.type != "cuda" or qkv.dtype.itemsize != 2 or width % 8 or width > WIDEST:
        return False
    built = NEW_ENOUGH and torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(qkv.device) >= OLDEST


class PackedAttention(torch.autograd.Function):
    """Each token's attention output, heads joined, from its row up to itself and the row's prompt.

    Rows attend to themselves, and all rows of a prompt to the prompt; the two results are merged by their normalisers,
    and each call's backward gets the merged ones. Source: Dao 2023 (FlashAttention-2); Juravsky et al. 2024
    (Hydragen), section 3.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Float[Tensor, "t k"], spans: Spans, n_head: int) -> Float[Tensor, "t d"]:
        q, k, v = _heads(qkv, n_head)
        rows, prompts = slice(spans.tokens, None), slice(spans.tokens)
        out, norm, *random, _ = _attend(q, k, v, *_own(spans))
        if spans.tokens < len(qkv):
            seen, seen_norm, *_ = _attend(q[rows], k[prompts], v[prompts], *_shared(spans))
            out[rows], norm[:, rows] = _merged(out[rows], norm[:, rows], seen, seen_norm)
        ctx.save_for_backward(qkv, out, norm, *random)
        ctx.spans, ctx.n_head = spans, n_head
        return out.flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "t d"]) -> tuple[Tensor, None, None]:
        (qkv, out, norm, *random), spans = ctx.saved_tensors, ctx.spans
        q, k, v = _heads(qkv, ctx.n_head)
        rows, prompts = slice(spans.tokens, None), slice(spans.tokens)
        grad = grad.view(out.shape)
        dq, dk, dv = _attend_backward(grad, q, k, v, out, norm, *_own(spans), *random)
        if spans.tokens < len(qkv):
            those = grad[rows], q[rows], k[prompts], v[prompts], out[rows], norm[:, rows].contiguous()
            dq_more, dk_more, dv_more = _attend_backward(*those, *_shared(spans), *random)
            dq[rows] += dq_more
            dk[prompts] += dk_more
            dv[prompts] += dv_more
        return torch.stack((dq, dk, dv), 1).flatten(1), None, None


def _heads(qkv: Float[Tensor, "t k"], n_head: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (T, H, W)."""
    return qkv.unflatten(1, (3, n_head, -1)).unbind(1)


def _own(spans: Spans) -> tuple[Tensor, Tensor, int, int, float, bool]:
    """How tokens see those of their own prompt or row: ends of queries and keys, most of each, dropout, causal."""
    return spans.ends, spans.ends, spans.longest, spans.longest, 0.0, True


def _shared(spans: Spans) -> tuple[Tensor, Tensor, int, int, float, bool]:
    """The same for the tokens of rows, which see those of their prompt."""
    return spans.groups, spans.prompts, spans.largest_group, spans.longest_prompt, 0.0, False


def _attend(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, ...]:
    """Outputs (T, H, W), the logs of the normalisers (H, T), two random states, and a tensor for debugging."""
    found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(q, k, v, *how, False)
    return found


def _attend_backward(grad: Tensor, *all_of_forward: Any) -> tuple[Tensor, ...]:
    """The gradients of q, k and v."""
    found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(grad, *all_of_forward)
    return found


@fusible
def _merged(
    a: Float[Tensor, "t h w"], a_norm: Float[Tensor, "h t"], b: Float[Tensor, "t h w"], b_norm: Float[Tensor, "h t"]
) -> tuple[Float[Tensor, "t h w"], Float[Tensor, "h t"]]:
    """The attention over the keys of both, and the log of its normaliser."""
    norm = torch.logaddexp(a_norm, b_norm)
    return torch.lerp(a.to(norm.dtype), b.to(norm.dtype), (b_norm - norm).exp().T[..., None]).to(a.dtype), norm
