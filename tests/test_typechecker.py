"""That the tests' own checks of shapes are at work."""

from __future__ import annotations

import pytest
import torch
import typechecker
from jaxtyping import TypeCheckError

from rookexp import ops


@pytest.mark.parametrize("before", [0, typechecker.FIRST - 1, 3 * typechecker.EVERY - 1])
def test_a_wrong_shape_is_found(before: int) -> None:
    for _ in range(before):
        ops.weighted_sum(torch.ones(3), torch.ones(3))
    with pytest.raises(TypeCheckError, match="weighted_sum"):
        ops.weighted_sum(torch.ones(3), torch.ones(3, dtype=torch.long))


def test_a_later_call_is_not_checked() -> None:
    for _ in range(typechecker.FIRST):
        ops.weighted_sum(torch.ones(3), torch.ones(3))
    assert ops.weighted_sum(torch.ones(3), torch.ones(3, dtype=torch.long)) == 3
