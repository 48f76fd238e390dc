"""Kinds of layers by hand counts, and what they refuse; the rest is held to traced modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from costmodels.errors import InvalidValueError
from costmodels.layers.attention_pooling import AttentionPooling
from costmodels.layers.base import AbstractLayer, Flow
from costmodels.layers.deepfm import DeepFm
from costmodels.layers.hstu import Hstu
from costmodels.layers.mmoe import Mmoe
from costmodels.layers.moe import Moe
from costmodels.layers.two_tower import TwoTower

FLOW = Flow(batch_size=10, width=64, is_input=False)


def flop(layer: AbstractLayer, flow: Flow = FLOW) -> float:
    """FLOP of a forward pass."""
    built = layer.build(flow)
    return sum(o.num_repeats * o.forward_flop for o in (*built.before, *built.after))


def test_flop_by_hand() -> None:
    mmoe = Mmoe(experts=3, tasks=2, expert_sizes=(32, 16), tower_sizes=(8, 1))
    expert, tower = 64 * 32 + 32 * 16, 16 * 8 + 8
    assert flop(mmoe) == 20 * (3 * expert + 2 * (64 * 3 + 3 * 16 + tower))
    assert flop(Moe(experts=4, top=2, ffn=32)) == 20 * 64 * 4 + 2 * 20 * 2 * 64 * 32
    towers = 2 * 20 * (32 * 48 + 48 * 8)
    assert flop(TwoTower(sizes=(48, 8))) == towers + 2 * 10 * 8 * 10
    pooling = AttentionPooling(seq=5, width=4, sizes=(6,))
    assert flop(pooling) == 2 * 50 * (16 * 6 + 6) + 2 * 10 * 5 * 4
    vectors = Flow(batch_size=10, num_vectors=4, num_elements=64)
    assert flop(DeepFm(sizes=(32,)), vectors) == 20 * (64 + 64 * 32 + 32)
    hstu = Hstu(layers=2, hidden=16, heads=2, seq=4)
    assert flop(hstu) == 2 * (2 * 40 * 5 * 16 * 16 + 2 * 2 * 20 * 4 * 8 * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Moe(experts=2, top=3, ffn=4), "top must be at most experts, got 3 of 2"),
        (lambda: Moe(experts=0, top=1, ffn=4), "experts must be 1..1e6"),
        (lambda: Hstu(layers=1, hidden=10, heads=4, seq=3), "hidden must be a multiple of heads"),
        (lambda: TwoTower(sizes=(3,), user_elements=-1), "user_elements must be 0..1e6, got -1"),
        (lambda: Mmoe(experts=1, tasks=1, expert_sizes=(), tower_sizes=(1,)), "expert_sizes must"),
        (lambda: DeepFm(sizes=(0,)), "sizes must be 1..1e6"),
        (lambda: AttentionPooling(seq=0, width=1, sizes=(1,)), "seq must be 1..1e6"),
        (lambda: DeepFm(sizes=(3,)).build(FLOW), "needs looked-up vectors of one width"),
        (
            lambda: DeepFm(sizes=(3,)).build(Flow(batch_size=1, num_vectors=2, num_elements=7)),
            "2 vectors of 7 elements",
        ),
        (
            lambda: TwoTower(sizes=(3,), user_elements=64).build(FLOW),
            "must leave some for the item, got 64 of 64",
        ),
        (
            lambda: Hstu(layers=1, hidden=16, heads=2, seq=3).build(FLOW),
            "needs 3 positions of 16 elements, but 64 elements",
        ),
        (lambda: Moe(experts=2, top=1, ffn=4).build(Flow(batch_size=1)), "nothing reaches it"),
    ],
)
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()
