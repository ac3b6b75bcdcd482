"""The checks of shapes and types that run with the tests refuse what does not fit."""

import pytest
import torch
from jaxtyping import Float
from shape_checks import check, jaxtyped
from torch import Tensor


@jaxtyped(typechecker=check)
def plain(count: int, *names: str) -> int:
    return count if names else "none"  # type: ignore[return-value]


@jaxtyped(typechecker=check)
def shaped(x: Float[Tensor, "V P"], y: Float[Tensor, "V P"]) -> Float[Tensor, "V P"]:
    return x if y.sum() == 0 else x.mT


def test_functions_are_checked_with_and_without_shapes_and_wherever_they_are_defined():
    @jaxtyped(typechecker=check)
    def inner(count: int, *names: str) -> int:
        return count if names else "none"  # type: ignore[return-value]

    for function in (plain, inner):
        assert function(1, "a") == 1
        for arguments in (("1", "a"), (1, 2), (1,)):  # the last returns a string
            with pytest.raises(TypeError):
                function(*arguments)
    zeros, ones = torch.zeros(2, 3), torch.ones(2, 3)
    assert shaped(zeros, zeros) is zeros
    for arguments in ((zeros, zeros.mT), (zeros, ones)):
        with pytest.raises(TypeError):
            shaped(*arguments)


def test_checks_can_be_turned_off(without_shape_checks):
    assert plain("1", "a") == "1"
    assert plain(1) == "none"
