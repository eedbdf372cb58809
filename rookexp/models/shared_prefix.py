"""Rows that continue shared prompts, packed so that every token is there once, without padding; their attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rookexp.models import flash
from rookexp.ops import parts, spare

# On a CPU, bytes of float32 attention weights that are computed at a time: all passes over them stay in its cache.
CACHED_BYTES = 8 << 20
BLOCK = 96  # on a CPU, tokens of a row that attend at a time: keys that none of them may see are left out


class Piece:
    """Rows whose attention a CPU computes at once: some of those that continue a prompt, or some of the prompts."""

    def __init__(self, prompt: slice, first: int, sizes: Int[Tensor, " n"], later: Float[Tensor, "c c"]) -> None:
        self.prompt = prompt  # where the prompt is among all tokens; empty if the rows are prompts
        self.tokens = slice(first, first + int(sizes.sum()))  # where the rows are
        self.shape = len(sizes), int(sizes.max())  # rows, and tokens of the longest
        inside = torch.arange(self.shape[1]) < sizes[:, None]
        # (T,) indices of the tokens in the rows padded to the longest, flattened; None = all rows have that length.
        self.places = None if inside.all() else inside.flatten().nonzero()[:, 0]
        self.later = later[: self.shape[1], : self.shape[1]]  # -inf where the key comes after the query

    def padded(self, x: Float[Tensor, "t k"]) -> Float[Tensor, "n c k"]:
        """This piece's rows out of all T tokens, shorter rows padded on the right with zeros."""
        x = x[self.tokens]
        if self.places is not None:
            x = x.new_zeros(self.shape[0] * self.shape[1], x.shape[1]).index_copy_(0, self.places, x)
        return x.view(*self.shape, x.shape[1])

    def flat(self, x: Float[Tensor, "h nc w"]) -> Float[Tensor, "t h w"]:
        """The tokens of padded rows (H, N C, W), without the padding and with the head dimension second."""
        return (x if self.places is None else x.index_select(1, self.places)).transpose(0, 1)


class SharedPrefix:
    """The T tokens of P prompts and N rows that continue them, without each row's last token, which predicts none.

    Prompts come first, then the rows, grouped by prompt, then perhaps tokens of no row (see `ops.spare`), whose
    attention output is 0 and which nothing reads.
    """

    def __init__(
        self,
        prompts: Int[Tensor, "p s"],
        lengths: Int[Tensor, " p"],
        owner: Int[Tensor, " n"],
        completions: Int[Tensor, "n c"],
        sizes: Int[Tensor, " n"],
        n_head: int,
    ) -> None:
        (p, s), (n, c) = prompts.shape, completions.shape
        order = owner.argsort(stable=True)
        self.n_head = n_head
        self.lengths = lengths
        self.owner = owner[order]  # (N,) index of each row's prompt, ascending
        self.sizes = (sizes[order] - 1).clamp(min=0)  # (N,) tokens of each row, without its last
        columns = torch.arange(max(s, c - 1), device=prompts.device)
        self.on_prompt = columns[:s] < lengths[:, None]  # (P, S) True where the padded prompts have a token
        on_rows = columns[: c - 1] < self.sizes[:, None]  # (N, C - 1)
        self.inside = torch.cat((self.on_prompt.flatten(), on_rows.flatten()))  # (places,) True where a token is
        self.at = self.inside.nonzero()[:, 0]  # (T,) places in padded rows
        self.places = self.inside.cumsum(0) - 1  # the inverse; padding has the index of the last token before it
        last = self.places[owner * s + lengths[owner] - 1]
        rows = self.places[p * s :].view(n, c - 1)[order.argsort()]
        self.predicting = torch.cat((last[:, None], rows), 1)  # (N, C) index of each completion token's predictor
        positions = columns[:s].expand(p, s).flatten(), (lengths[self.owner, None] + columns[: c - 1]).flatten()
        more = 0, spare(len(self.at), prompts.device.type)  # tokens at the end that belong to no row
        self.tokens = F.pad(torch.cat((prompts.flatten(), completions[order, :-1].flatten()))[self.at], more)
        self.positions = F.pad(
            torch.cat(positions)[self.at], more
        )  # of each token in its prompt and completion, from 0
        self.shape = p, s, n, c - 1

    def apart(self, x: Float[Tensor, "t d"]) -> Float[Tensor, "n c d"]:
        """`x` at the token that predicts each completion token, rows in the caller's order; arbitrary at padding."""
        return x.index_select(0, self.predicting.flatten()).view(*self.predicting.shape, -1)

    def attend(self, qkv: Float[Tensor, "t k"]) -> Float[Tensor, "t d"]:
        """The attention output, heads joined, of all tokens; a token sees its row up to itself and the row's prompt."""
        if flash.usable(qkv, self.n_head):
            packed: Tensor = flash.PackedAttention.apply(qkv, self.spans, self.n_head)
            return packed
        if qkv.device.type != "cpu":
            return self._masked(qkv)
        attended: Tensor = _Attention.apply(qkv, self.pieces, self.n_head)
        return attended

    def keys_and_values(self, qkv: Float[Tensor, "t k"]) -> Float[Tensor, "2 p h s w"]:
        """The prompts' keys and values in float32, zero-padded on the right; only while no row continues them."""
        p, s, _, _ = self.shape
        own = qkv[: len(self.at), qkv.shape[1] // 3 :].float()
        padded = own.new_zeros(p * s, own.shape[1]).index_copy_(0, self.at, own)
        return padded.view(p, s, 2, self.n_head, -1).permute(2, 0, 3, 1, 4)

    def _masked(self, qkv: Float[Tensor, "t k"]) -> Float[Tensor, "t d"]:
        """`attend` with PyTorch's kernels, on padded rows whose keys and values follow those of their prompts."""
        p, s, n, c = self.shape
        padded: Tensor = _Moved.apply(qkv, self.places, self.at, None)
        of_prompts, of_rows = padded.unflatten(1, (3, self.n_head, -1)).split((p * s, n * c))
        q, k, v = of_prompts.unflatten(0, (p, s)).permute(2, 0, 3, 1, 4)
        found = [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
        if c:  # else, as in a prefill, there are only prompts
            # A product with zeros and ones copies each prompt to its rows; its backward adds the gradients in fp32.
            mine = (self.owner[:, None] == torch.arange(p, device=qkv.device)).to(qkv.dtype)  # (N, P)
            seen = (mine @ of_prompts[:, 1:].reshape(p, -1)).view(n, s, 2, *of_rows.shape[2:])
            own = of_rows.unflatten(0, (n, c))
            k, v = torch.cat((seen, own[:, :, 1:]), 1).permute(2, 0, 3, 1, 4)
            found.append(F.scaled_dot_product_attention(own[:, :, 0].transpose(1, 2), k, v, attn_mask=self.mask))
        joined = torch.cat([x.transpose(1, 2).reshape(-1, qkv.shape[1] // 3) for x in found])
        moved: Tensor = _Moved.apply(joined, self.at, self.places, self.inside)
        return moved

    @cached_property
    def spans(self) -> flash.Spans:
        """Where prompts and rows lie."""
        p, s, _, c = self.shape
        of_groups = self.lengths.new_zeros(p).index_add_(0, self.owner, self.sizes)
        ends = F.pad(torch.cat((self.lengths, self.sizes)).cumsum(0), (1, 0)).int()
        groups = F.pad(of_groups.cumsum(0), (1, 0)).int()
        tokens, largest = torch.stack((self.lengths.sum(), of_groups.max())).tolist()
        own = ends if c else ends[: p + 1]  # in a prefill rows have no tokens
        return flash.Spans(own, ends[: p + 1], groups, tokens, max(s, c), s, largest)

    @cached_property
    def mask(self) -> Bool[Tensor, "n 1 c w"]:
        """True where a token of a padded row may see a token of its prompt, or of the row itself."""
        _, s, n, c = self.shape
        own = torch.ones(c, c, dtype=torch.bool, device=self.at.device).tril()
        return torch.cat((self.on_prompt[self.owner, None].expand(n, c, s), own.expand(n, c, c)), -1)[:, None]

    @cached_property
    def pieces(self) -> list[Piece]:
        """All tokens, in pieces of as many rows as keep a block's weights within CACHED_BYTES, at least one row."""
        ends = [0, *accumulate(self.lengths.tolist())]
        prompts = [slice(0, 0), *map(slice, ends, ends[1:])]
        rows = self.sizes.split(self.owner.bincount(minlength=len(self.lengths)).tolist())
        _, s, _, c = self.shape
        later = torch.full((max(s, c), max(s, c)), -torch.inf).triu_(1)
        found: list[Piece] = []
        for prompt, sizes in zip(prompts, (x[x > 0] for x in (self.lengths, *rows)), strict=True):
            longest = max(sizes.tolist(), default=1)
            bytes_of_row = 4 * self.n_head * min(longest, BLOCK) * (prompt.stop - prompt.start + longest)
            for part in parts(len(sizes), max(1, CACHED_BYTES // bytes_of_row)):
                found.append(Piece(prompt, found[-1].tokens.stop if found else 0, sizes[part], later))
        return found


class _Moved(torch.autograd.Function):
    """Rows of `x` at the indices `at`, of which `back` is the inverse; where not `real`, rows of `x` are padding.

    Backward takes rows by indices, too; that of an index_select adds them to zeros, which takes longer.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "m k"], at: Tensor, back: Tensor, real: Tensor | None
    ) -> Float[Tensor, "n k"]:
        ctx.save_for_backward(back, real)
        return x.index_select(0, at)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "n k"]) -> tuple[Tensor, None, None, None]:
        back, real = ctx.saved_tensors
        found = grad.index_select(0, back)
        return (found if real is None else found.mul_(real[:, None])), None, None, None


class _Attention(torch.autograd.Function):
    """`SharedPrefix.attend` on a CPU, in at least float32, like cached decoding; backward recomputes the weights.

    PyTorch's CPU kernel takes about twice as long for rows of 64 tokens, and needs each row's keys in one block.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Float[Tensor, "t k"], pieces: list[Piece], n_head: int) -> Float[Tensor, "t d"]:
        ctx.save_for_backward(qkv)
        ctx.pieces, ctx.n_head = pieces, n_head
        out = qkv.new_empty(len(qkv), n_head, qkv.shape[1] // 3 // n_head)
        out[pieces[-1].tokens.stop :] = 0.0
        with torch.autocast("cpu", enabled=False):
            for piece in pieces:
                whole = _Heads.of(qkv, piece, n_head)
                values = torch.empty_like(whole.q)
                for block in parts(values.shape[1], BLOCK):
                    of = whole.seen_by(block)
                    on_prompt, on_own = of.split(of.weights(piece.later[block, : block.stop]))
                    found = of.together(torch.bmm(on_own, of.v)).baddbmm_(of.together(on_prompt), of.prompt_v)
                    values[:, block] = of.apart(found)
                out[piece.tokens] = piece.flat(whole.together(values))
        return out.flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "t d"]) -> tuple[Tensor, None, None]:
        (qkv,), n_head = ctx.saved_tensors, ctx.n_head
        exact = torch.promote_types(qkv.dtype, torch.float32)
        out = torch.empty(len(qkv), 3, n_head, qkv.shape[1] // 3 // n_head, dtype=exact)
        out[ctx.pieces[-1].tokens.stop :] = 0.0
        with torch.autocast("cpu", enabled=False):
            for piece in ctx.pieces:
                whole = _Heads.of(qkv, piece, n_head)
                (dvalues,) = _heads(piece.padded(grad), 1, n_head)
                dq, dk, dv = torch.empty_like(whole.q), torch.zeros_like(whole.k), torch.zeros_like(whole.v)
                for block in parts(dq.shape[1], BLOCK):
                    of, dout = whole.seen_by(block), dvalues[:, block]
                    weights = of.weights(piece.later[block, : block.stop])
                    dprompt = of.apart(torch.bmm(of.together(dout), of.prompt_v.mT))
                    dweights = torch.cat((dprompt, torch.bmm(dout, of.v.mT)), -1)
                    dscores = torch._softmax_backward_data(dweights, weights, -1, exact)
                    (on_prompt, on_own), (dprompt, down) = of.split(weights), of.split(dscores)
                    found = of.together(torch.bmm(down, of.k)).baddbmm_(of.together(dprompt), of.prompt_k)
                    dq[:, block] = of.apart(found.mul_(dq.shape[2] ** -0.5))
                    dk[:, : block.stop] += torch.bmm(down.mT, of.q)
                    dv[:, : block.stop] += torch.bmm(on_own.mT, dout)
                    dprompt_k = torch.bmm(of.together(dprompt).mT, of.together(of.q))
                    dprompt_v = torch.bmm(of.together(on_prompt).mT, of.together(dout))
                    out[piece.prompt, 1:] += torch.stack((dprompt_k, dprompt_v)).permute(2, 0, 1, 3)
                for i, x in enumerate((dq, dk, dv)):
                    out[piece.tokens, i] = piece.flat(whole.together(x))
        return out.flatten(1).to(qkv.dtype), None, None


@dataclass(frozen=True, slots=True)
class _Heads:
    """A piece split by heads: q, k and v (H N, C, W) of its rows, keys and values (H, S, W) of their prompt."""

    q: Float[Tensor, "hn b w"]  # divided by the root of W
    k: Float[Tensor, "hn c w"]
    v: Float[Tensor, "hn c w"]
    prompt_k: Float[Tensor, "h s w"]
    prompt_v: Float[Tensor, "h s w"]
    n_head: int

    @classmethod
    def of(cls, qkv: Float[Tensor, "t k"], piece: Piece, n_head: int) -> _Heads:
        """The heads of a whole piece; q is divided by the root of W."""
        q, k, v = _heads(piece.padded(qkv), 3, n_head)
        prompt_k, prompt_v = _heads(qkv[None, piece.prompt, qkv.shape[1] // 3 :], 2, n_head)
        return cls(q.mul_(q.shape[2] ** -0.5), k, v, prompt_k, prompt_v, n_head)

    def seen_by(self, block: slice) -> _Heads:
        """The same, cut to the queries of the tokens `block` of each row and the row's keys and values they may see."""
        return replace(self, q=self.q[:, block], k=self.k[:, : block.stop], v=self.v[:, : block.stop])

    def weights(self, later: Float[Tensor, "b c"]) -> Float[Tensor, "hn b sc"]:
        """Each token's attention weights over its prompt, then over its row; 0 where `later` is -inf."""
        on_prompt = self.apart(torch.bmm(self.together(self.q), self.prompt_k.mT))
        on_own = torch.baddbmm(later.to(self.q.dtype), self.q, self.k.mT)
        return torch.cat((on_prompt, on_own), -1).softmax(-1)

    def split(self, weights: Float[Tensor, "hn b sc"]) -> tuple[Tensor, Tensor]:
        """The weights on the prompt's tokens, and those on the row's."""
        on_prompt, on_own = weights.split((self.prompt_k.shape[1], self.k.shape[1]), -1)
        return on_prompt, on_own

    def together(self, x: Float[Tensor, "hn c k"]) -> Float[Tensor, "h nc k"]:
        """All rows of each head in one dimension, so that one product serves them."""
        return x.unflatten(0, (self.n_head, -1)).flatten(1, 2)

    def apart(self, x: Float[Tensor, "h nc k"]) -> Float[Tensor, "hn c k"]:
        """The inverse of `together`: each row of each head by itself."""
        return x.unflatten(1, (-1, self.q.shape[1])).flatten(0, 1)


def _heads(x: Float[Tensor, "n c k"], count: int, n_head: int) -> Float[Tensor, "count hn c w"]:
    """`x` (`count` of queries, keys and values, side by side) split by heads, in at least float32."""
    apart = x.unflatten(2, (count, n_head, -1)).permute(2, 3, 0, 1, 4)
    exact = torch.promote_types(x.dtype, torch.float32)
    return torch.empty(apart.shape, dtype=exact).copy_(apart).flatten(1, 2)
