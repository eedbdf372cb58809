"""Tensor operations that a formula needs and PyTorch lacks; pure, no configuration."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Divergence = Callable[[Tensor, Tensor], Tensor]  # (log p, log q), each (..., V), to (...): see rookexp.kl


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What the policy softmax(z / temperature) says at M tokens."""

    logprobs: Float[Tensor, " m"]  # log-prob of each target, nats
    entropy: Float[Tensor, " m"]  # exact entropy over the vocabulary, nats, in [0, log V]
    kl: Float[Tensor, " m"] | None  # exact divergence from the reference at the same temperature, nats
    ref_logprobs: Float[Tensor, " m"] | None  # the reference's log-prob of each target, nats, without a gradient
    forward_kl: Float[Tensor, " m"] | None  # exact KL(policy || reference), nats, without a gradient; like the two
    # before it None where no divergence was asked for, and the same as `kl` where that is forward


def token_stats(
    hidden: Float[Tensor, "m d"],
    head_weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " m"],
    temperature: Float[Tensor, " m"],
    divergence: Divergence | None,
    ref_hidden: Float[Tensor, "m e"] | None,
    ref_head_weight: Float[Tensor, "v e"] | None,
    chunk: int,
) -> TokenStats:
    """Log-probs, entropies and divergences of M tokens from hidden states, in chunks of `chunk` tokens.

    The policy is softmax(hidden @ head_weight.T / temperature), and so is the reference: one temperature (> 0) a row
    serves sampling, ratio, entropy and divergence. Logits of at most `chunk` tokens exist at a time: in forward, and
    recomputed in backward, but for the last chunk, which waits for it; so up to `chunk` tokens go through the head
    once. Products run in the autocast dtype, everything after them in at least float32, and the head's gradient is
    summed over chunks in at least float32. An output that the loss does not use costs no backward: detach `entropy` or
    `kl` when they are only metrics. The reference never gets a gradient; with `divergence` None it is never touched.
    """
    return TokenStats(
        *_TokenStats.apply(hidden, head_weight, targets, temperature, divergence, ref_hidden, ref_head_weight, chunk)
    )


def zero_outside(x: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """`x` where `mask`, else 0, with no gradient there: padding may hold anything, NaN included."""
    return torch.where(mask, x, 0.0)


def weighted_sum(x: Float[Tensor, "*n"], weights: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """The sum of x * weights; where a weight is 0, `x` may hold anything, NaN included."""
    return torch.where(weights != 0, x * weights, 0.0).sum()


def parts(count: int, size: int) -> list[slice]:
    """0..count in as few slices of at most `size` >= 1 as there can be, none more than 1 longer than another."""
    number = -(-count // size)
    return [slice(count * i // number, count * (i + 1) // number) for i in range(number)]


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on the values and order of `parts` alone, in every process on every machine.

    Source: BLAKE2b, RFC 7693.
    """
    key = repr([part if isinstance(part, str) else operator.index(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


class _TokenStats(torch.autograd.Function):
    """`token_stats`; its own backward, because checkpointing would sum the head's gradient in bf16 and keep more."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, temperature, divergence, ref_hidden, ref_head_weight, chunk = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, head_weight, targets, temperature, ref_hidden, ref_head_weight)
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        ctx.product = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        ctx.divergence, ctx.chunk = divergence, chunk
        weight = head_weight.to(ctx.product)
        ref_weight: Any = None if divergence is None else ref_head_weight.to(ctx.product)
        dtype = torch.promote_types(ctx.product, torch.float32)
        logprobs, entropy, kl, ref_logprobs, forward_kl = torch.empty(5, len(hidden), dtype=dtype, device=hidden.device)
        logp = logq = None
        with torch.autocast(device, enabled=False):  # which would compute dot products in its own dtype, these, too
            for rows in parts(len(hidden), chunk):
                logp = _log_softmax(hidden[rows], weight, temperature[rows])  # (C, V)
                logprobs[rows] = logp.gather(1, targets[rows, None])[:, 0]
                p = logp.exp()
                entropy[rows] = -torch.linalg.vecdot(p, logp)
                if divergence is not None:
                    logq = _log_softmax(ref_hidden[rows], ref_weight, temperature[rows])
                    ref_logprobs[rows] = logq.gather(1, targets[rows, None])[:, 0]
                    kl[rows] = divergence(logp, logq)
                    forward_kl[rows] = torch.linalg.vecdot(p, logp - logq)
        # Backward begins with the last chunk: kept till then it is not computed again, and the most that is alive at a
        # time is what it is anyway.
        ctx.last = logp, logq
        ctx.mark_non_differentiable(ref_logprobs, forward_kl)
        compared = (None, None, None) if divergence is None else (kl, ref_logprobs, forward_kl)
        return logprobs, entropy, *compared

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logprobs_grad, entropy_grad, kl_grad, *_ = grads
        hidden, head_weight, targets, temperature, ref_hidden, ref_head_weight = ctx.saved_tensors
        weight = head_weight.to(ctx.product)
        ref_weight: Any = None if kl_grad is None else ref_head_weight.to(ctx.product)
        dtype = torch.promote_types(ctx.product, torch.float32)
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(head_weight, dtype=dtype) if ctx.needs_input_grad[1] else None
        logp, logq = ctx.last
        ctx.last = None, None  # a second backward of the same graph computes it again
        for rows in reversed(parts(len(hidden), ctx.chunk)):
            if logp is None:
                logp = _log_softmax(hidden[rows], weight, temperature[rows])  # (C, V)
            p = logp.exp()
            if kl_grad is None:
                grad = torch.zeros_like(logp)
            else:
                if logq is None:
                    logq = _log_softmax(ref_hidden[rows], ref_weight, temperature[rows])
                grad = _divergence_grad(ctx.divergence, logp, logq, kl_grad[rows])
            if entropy_grad is not None:
                grad.addcmul_(p * entropy_grad[rows, None], logp, value=-1)
            if logprobs_grad is not None:
                grad.scatter_add_(1, targets[rows, None], logprobs_grad[rows, None])
            grad.addcmul_(p, grad.sum(1, keepdim=True), value=-1)  # from log-probs to logits
            grad = grad.div_(temperature[rows, None]).to(ctx.product)
            if hidden_grad is not None:
                hidden_grad[rows] = grad @ weight
            if weight_grad is not None and ctx.product == dtype:
                weight_grad.addmm_(grad.T, hidden[rows].to(dtype))
            elif weight_grad is not None:
                weight_grad += grad.T @ hidden[rows].to(ctx.product)
            logp = logq = None
        if weight_grad is not None:
            weight_grad = weight_grad.to(head_weight.dtype)
        return hidden_grad, weight_grad, None, None, None, None, None, None


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    """log softmax(hidden @ weight.T / temperature) in at least float32, (C, V)."""
    logits = hidden.to(weight.dtype) @ weight.T
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature[:, None]).log_softmax(1)


def _divergence_grad(divergence: Divergence, logp: Tensor, logq: Tensor, grad: Tensor) -> Tensor:
    """The gradient of sum(grad * divergence) at logp, (C, V)."""
    with torch.enable_grad():
        logp = logp.detach().requires_grad_()
        value = divergence(logp, logq)
    return torch.autograd.grad(value, logp, grad)[0]
