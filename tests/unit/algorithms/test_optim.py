"""The optimizer seam: the same steps as torch's own optimizers, refusals, and flat storage."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal import optim
from shoal.errors import UserError
from shoal.nets.weights import named_tensors
from shoal.schedules import annealed


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(module: nn.Module, step: int) -> Tensor:
    x = torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(step))
    return (module(x) - 1.0).square().mean()


def reference(module: nn.Module, kind: str, epsilon: float) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(module.parameters(), lr=0.01, eps=epsilon)
    if kind == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.8)
    return torch.optim.RMSprop(
        module.parameters(), lr=0.01, eps=epsilon, alpha=0.99, centered=kind == "centred rmsprop"
    )


@pytest.mark.parametrize("kind", ["adam", "rmsprop", "centred rmsprop", "sgd"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.1], ids=["not clipped", "clipped"])
def test_steps_are_those_of_torch(kind: str, clip_norm: float) -> None:
    ours, theirs = network(), network()
    own = {"kind": kind.split()[-1], "centred": kind.startswith("centred"), "momentum": 0.8 if kind == "sgd" else None}
    optimizer = optim.Local(ours.parameters(), rate=0.01, epsilon=1e-3, clip_norm=clip_norm, **own)  # type: ignore[arg-type]
    expected = reference(theirs, kind, 1e-3)
    for step in range(10):
        report = optimizer.step(loss_of(ours, step))
        expected.zero_grad()
        loss_of(theirs, step).backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or float("inf"))
        expected.step()
        assert report.applied
        assert report.grad_norm == pytest.approx(float(norm), rel=1e-4)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_rmsprop_can_add_epsilon_inside_the_root() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer = optim.Local([parameter], rate=0.5, kind="rmsprop", epsilon=0.1, epsilon_inside=True)
    optimizer.step(3.0 * parameter.sum())
    assert float(parameter.detach()) == pytest.approx(1.0 - 0.5 * 3.0 / (0.01 * 9.0 + 0.1) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(bad: float, where: str) -> None:
    ours, straight = network(), network()
    optimizer = optim.Local(ours.parameters(), rate=0.01, clip_norm=0.5)
    other = optim.Local(straight.parameters(), rate=0.01, clip_norm=0.5)
    for step in range(3):
        optimizer.step(loss_of(ours, step))
        other.step(loss_of(straight, step))
    before = [parameter.detach().clone() for parameter in ours.parameters()]
    loss = loss_of(ours, 9)
    if where == "loss":
        loss = loss + bad  # the gradient stays finite
    else:
        loss = loss + bad_gradient(next(ours.parameters()), bad)
        assert torch.isfinite(loss)
    assert not optimizer.step(loss).applied
    for parameter, kept in zip(ours.parameters(), before):
        torch.testing.assert_close(parameter.detach(), kept, rtol=0, atol=0)
    optimizer.step(loss_of(ours, 3))  # moments and step count are untouched too
    other.step(loss_of(straight, 3))
    for one, same in zip(ours.parameters(), straight.parameters()):
        torch.testing.assert_close(one, same, rtol=0, atol=0)


def bad_gradient(x: Tensor, bad: float) -> Tensor:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape
            return x.new_zeros(())

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return torch.full(ctx.shape, bad)

    return Bad.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_parameters_become_views_of_one_flat_tensor() -> None:
    module = network()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = optim.Local(module.parameters(), rate=0.1)
    for parameter, value in zip(module.parameters(), before):
        torch.testing.assert_close(parameter.detach(), value, rtol=0, atol=0)
    assert optimizer.flat.numel() == sum(value.numel() for value in before)
    optimizer.flat.zero_()
    assert all(not parameter.any() for parameter in module.parameters())


def test_a_parameter_that_the_loss_does_not_reach_or_that_is_frozen_stays() -> None:
    used, unused, frozen = (nn.Parameter(torch.ones(2), requires_grad=i < 2) for i in range(3))
    optim.Local([used, unused, frozen], rate=0.1).step(used.sum())
    assert not torch.equal(used, torch.ones(2))
    assert torch.equal(unused, torch.ones(2))
    assert torch.equal(frozen, torch.ones(2))


def test_a_reduction_sees_the_count_and_comes_before_the_clip() -> None:
    """What several learners do: the gradient of two halves, weighted by their counts, is that of the whole."""

    class Doubled(optim.Local):
        def _reduce(self, gradient: Tensor, loss: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
            assert count is not None
            return gradient * count, loss

    parameter = nn.Parameter(torch.zeros(1))
    report = Doubled([parameter], rate=0.1, clip_norm=1.0).step(parameter.sum(), torch.tensor(7))
    assert report.grad_norm == pytest.approx(7.0)


def test_the_linear_schedule_ends_at_zero() -> None:
    schedule = annealed(0.1, 4)
    assert [schedule(done) for done in range(6)] == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0, 0.0])
    parameter = nn.Parameter(torch.ones(1))
    optimizer = optim.Local([parameter], rate=annealed(0.1, 2))
    moved = []
    for _ in range(3):
        before = float(parameter.detach())
        optimizer.step(parameter.sum())
        moved.append(before - float(parameter.detach()))
    assert moved == pytest.approx([0.1, 0.05, 0.0], abs=1e-6)


def test_an_unknown_optimizer_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="no optimizer 'adamw': choose one of adam, rmsprop, sgd"):
        optim.Local(network().parameters(), rate=0.1, kind="adamw")
    with pytest.raises(UserError, match="RMSProp has no momentum here"):
        optim.Local(network().parameters(), rate=0.1, kind="rmsprop", momentum=0.9)
    with pytest.raises(UserError, match="nothing to train"):
        optim.Local([nn.Parameter(torch.ones(1), requires_grad=False)], rate=0.1)


KINDS = [{"kind": "adam"}, {"kind": "rmsprop"}, {"kind": "rmsprop", "centred": True}, {"kind": "sgd", "momentum": 0.9}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_an_optimizer_goes_on_from_its_state_to_the_last_bit(options: dict[str, Any]) -> None:
    """Moments, the count of updates that bias corrections and the schedule depend on, and nothing else, are state."""
    straight, first = network(), network()
    schedule = annealed(0.05, 20)
    one, before = (optim.Local(module.parameters(), rate=schedule, **options) for module in (straight, first))
    for step in range(5):
        one.step(loss_of(straight, step))
        before.step(loss_of(first, step))
    state = copy.deepcopy({"network": first.state_dict(), "optimizer": before.state_dict()})
    before.step(loss_of(first, 99))  # what was taken does not change with it
    second = network()
    after = optim.Local(second.parameters(), rate=schedule, **options)
    second.load_state_dict(state["network"])
    after.load_state_dict(state["optimizer"])
    for step in range(5, 10):
        one.step(loss_of(straight, step))
        after.step(loss_of(second, step))
    assert after.updates == one.updates == 10
    for left, right in zip(straight.parameters(), second.parameters()):
        assert torch.equal(left, right)


def test_a_state_of_another_optimizer_or_size_is_refused() -> None:
    adam = optim.Local(network().parameters(), rate=0.1)
    rmsprop = optim.Local(network().parameters(), rate=0.1, kind="rmsprop")
    small = optim.Local([nn.Parameter(torch.ones(2))], rate=0.1)
    for other in (rmsprop, small):
        with pytest.raises(ValueError, match="the state is of"):
            other.load_state_dict(adam.state_dict())


def test_learners_that_load_one_state_stay_equal_to_the_last_bit() -> None:
    """Every rank restores the same moments and steps on the same sum."""
    nets = [network() for _ in range(2)]

    class Peer:
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def sum(self, values: Tensor) -> Tensor:
            return values * 2.0  # both see the same rows here

    ranks = [optim.AllReduce(net.parameters(), Peer(rank), rate=0.01) for rank, net in enumerate(nets)]
    for step in range(3):
        ranks[0].step(loss_of(nets[0], step), torch.tensor(8))
    state = copy.deepcopy(ranks[0].state_dict())
    nets[1].load_state_dict(nets[0].state_dict())
    ranks[1].load_state_dict(state)
    for rank, net in zip(ranks, nets):
        rank.step(loss_of(net, 7), torch.tensor(8))
    assert ranks[0].updates == ranks[1].updates == 4
    assert torch.equal(ranks[0].flat, ranks[1].flat)


def test_what_was_frozen_or_is_not_used_has_a_gradient_of_zeros() -> None:
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4))
    optimizer = optim.Local([one, other], rate=0.5, kind="sgd")
    one.requires_grad_(False)
    assert optimizer.step((2.0 * one).sum() + other.sum()) == optim.StepReport(2.0, True)
    assert optimizer.flat.tolist() == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert optimizer.step((2.0 * one).sum()) == optim.StepReport(0.0, True)  # a loss of what is frozen alone
    assert optimizer.flat.tolist() == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_learners_that_have_no_valid_row_among_them_make_a_step_along_nothing() -> None:
    class Peer:
        rank, size = 0, 2

        def sum(self, values: Tensor) -> Tensor:
            return values * 2.0

    net = network()
    optimizer = optim.AllReduce(net.parameters(), Peer(), rate=0.1, kind="sgd")
    before = optimizer.flat.clone()
    assert optimizer.step(loss_of(net, 0), torch.tensor(0)) == optim.StepReport(0.0, True)
    assert torch.equal(optimizer.flat, before)


def test_named_tensors_taken_before_the_optimizer_was_made_follow_its_steps() -> None:
    module = network()
    taken = named_tensors(module)
    first = {name: tensor.clone() for name, tensor in taken.items()}
    optim.Local(module.parameters(), rate=0.1).step(loss_of(module, 0))
    for name, tensor in module.state_dict().items():
        assert torch.equal(taken[name], tensor)
        assert not torch.equal(taken[name], first[name])
    assert len(taken) == len(first) == len(list(taken))
