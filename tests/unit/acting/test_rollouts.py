"""Rollouts on a device: batches of tensors for the on-policy pages, the same whenever environments reset."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.acting import Recorder
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.rollouts import Rollouts
from shoal.algorithms import impala, ppo
from shoal.batches import Batch, with_final_rows
from shoal.envs.faults import EnvFault
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from shoal.errors import UserError
from shoal.functional import gae as gae_law
from shoal.functional import vtrace as vtrace_law
from shoal.functional.gae import gae
from shoal.functional.returns import backward_recurrence
from shoal.functional.vtrace import vtrace
from tensor_vectors import COUNT, SPACES, Counting

ROWS, GAMMA = 7, 0.9
MODES: tuple[Autoreset, ...] = ("next_step", "same_step")


class Worth(nn.Module):
    """Values that tell observations apart: 10 · episode + step."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(observation), observation @ torch.tensor([10.0, 1.0])


def worth(*_: Any) -> nn.Module:
    return Worth()


def rollouts(autoreset: Autoreset, page: Any = ppo, rows: int = ROWS, **options: Any) -> tuple[Any, Rollouts]:
    cfg = page.Config(**{"env": "", "unroll": rows, "gamma": GAMMA, **options})
    learner = (page.PPO if page is ppo else page.Impala)(cfg, SPACES, 0)
    policy = page.make_policy(cfg, SPACES, 1).share(learner.network)
    return learner, Rollouts(TensorEnvs(Counting(autoreset)), policy, rows)


def transitions(batches: list[Batch]) -> list[list[tuple[float, ...]]]:
    """Of every environment: episode, step, action, reward, whether it terminated."""
    found: list[list[tuple[float, ...]]] = [[] for _ in range(COUNT)]
    for batch in batches:
        for row, environment in batch["valid"].nonzero().tolist():
            seen = batch["observation"][row, environment].tolist()
            columns = (float(batch[name][row, environment]) for name in ("action", "reward", "terminated"))
            found[environment].append((*seen, *columns))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_every_transition_is_in_one_batch_and_episodes_are_whole(mode: Autoreset) -> None:
    _, made = rollouts(mode)
    batches = [{name: x.clone() for name, x in made.next().items() if name != "state"} for _ in range(4)]
    for environment, rows in enumerate(transitions(batches)):
        length = environment + 2
        assert len(rows) == 4 * ROWS if mode == "same_step" else len(rows) < 4 * ROWS
        for number, (episode, step, action, reward, terminated) in enumerate(rows):
            assert (episode, step) == divmod(number, length)
            assert reward == action
            assert terminated == (step == length - 1 and episode % 2 == 1)
    for batch in batches:
        assert not batch["valid"][-1].any()
        for row, environment in batch["first"][:-1].nonzero().tolist():
            if batch["valid"][row, environment]:
                assert batch["observation"][row, environment, 1] == 0, "the first of an episode"


@pytest.mark.parametrize("law", ["gae", "vtrace"])
@pytest.mark.parametrize("mode", MODES)
def test_what_follows_a_truncated_row_is_worth_its_final_observation(mode: Autoreset, law: str) -> None:
    """Not the row's own value, nor that of the next episode's first observation; what terminated leads to nothing."""
    learner, made = rollouts(mode, network=f"{__name__}:worth")
    cut = 0
    for _ in range(3):
        batch = made.next()
        with torch.no_grad():
            _, values, _ = learner.network(batch["observation"], batch["state"], batch["first"])
        rewards, terminated, valid = (batch[name][:-1] for name in ("reward", "terminated", "valid"))
        discounts = torch.where(terminated, 0.0, GAMMA)
        if law == "gae":
            found = gae(values=values, rewards=rewards, discounts=discounts, valid=valid, lambda_=0.7).advantages
        else:
            found = vtrace(
                values=values, rewards=rewards, discounts=discounts, rho=valid.float(), lambda_=0.0
            ).advantages
        for row, environment in valid.nonzero().tolist():
            episode, step = batch["observation"][row, environment].tolist()
            if step != environment + 1:
                continue  # not the last of its episode
            cut += episode % 2 == 0
            final = 0.0 if episode % 2 else 10 * episode + step + 1
            expected = rewards[row, environment] + GAMMA * final - (10 * episode + step)
            torch.testing.assert_close(found[row, environment], expected)
    assert cut > COUNT


@pytest.mark.parametrize("mode", MODES)
def test_a_recurrent_learner_finds_the_probabilities_that_were_acted_with(mode: Autoreset) -> None:
    learner, made = rollouts(mode, lstm=4)
    for _ in range(3):
        batch = made.next()
        with torch.no_grad():
            parameters, _, _ = learner.network(batch["observation"], batch["state"], batch["first"])
            found = learner.network.distribution.log_prob(parameters, batch["action"])
        torch.testing.assert_close(found[batch["valid"]], batch["log_prob"][batch["valid"]])


@pytest.mark.parametrize("page", [ppo, impala], ids=["ppo", "impala"])
@pytest.mark.parametrize("mode", MODES)
def test_between_environment_and_update_nothing_becomes_an_array(
    mode: Autoreset, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, made = rollouts(mode, page)
    for law in (gae_law, vtrace_law):  # as on other devices: on a CPU the recurrence goes over a view of the memory
        monkeypatch.setattr(law, "backward_recurrence", partial(backward_recurrence, by_doubling=True))
    counted: list[str] = []

    def counting(name: str, called: Any) -> Any:
        return lambda *given, **named: (counted.append(name), called(*given, **named))[1]

    before = {name: x.clone() for name, x in learner.network.state_dict().items()}
    for owner, name in (
        (torch, "from_numpy"),
        (Tensor, "numpy"),
        (Tensor, "cpu"),
        (Tensor, "item"),
        (Tensor, "tolist"),
    ):
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    for _ in range(3):
        assert learner.update(made.next()).applied
    assert not counted
    assert learner.network.training, "acting leaves the learner's network as it was"
    assert any(not torch.equal(x, before[name]) for name, x in learner.network.state_dict().items())


def test_final_rows_are_put_in_after_the_rows_that_end() -> None:
    random = torch.Generator().manual_seed(0)
    ended = torch.rand(6, 4, generator=random) < 0.4
    ended[:, 3] = False
    observation, final = torch.arange(28.0).view(7, 4, 1), 100 + torch.arange(24.0).view(6, 4, 1)
    valid = torch.ones(7, 4, dtype=torch.bool)
    valid[-1] = False
    found = with_final_rows({"observation": observation, "valid": valid}, {"observation": final}, ended)
    expected_length = 7 + int(ended.sum(0).max())
    for environment in range(4):
        seen: list[tuple[float, bool]] = []
        for row in range(7):
            seen.append((float(observation[row, environment]), row < 6))
            if row < 6 and ended[row, environment]:
                seen.append((float(final[row, environment]), False))
        seen += [(float(observation[-1, environment]), False)] * (expected_length - len(seen))
        assert seen == list(
            zip(found["observation"][:, environment, 0].tolist(), found["valid"][:, environment].tolist())
        )


class Forgetful(Counting):
    def step(self, action: Tensor, /) -> Any:
        return *super().step(action)[:4], {}


class Silent(Counting):
    def __init__(self) -> None:
        super().__init__("next_step")
        self.metadata = {}


class Numpy(Counting):
    def reset(self) -> Any:
        return super().reset()[0].numpy(), {}


def test_a_cut_whose_end_is_lost_is_no_transition_and_is_told_once() -> None:
    """So the step before it is bootstrapped from what it led to, and nothing from the next episode."""
    lost = TensorEnvs(Forgetful("same_step"))
    lost.reset()
    lost.step(torch.ones(COUNT))
    assert lost.take_notes() == []
    step = lost.step(torch.ones(COUNT))  # environment 0 is cut after two steps
    assert (step.reset.tolist(), step.truncated.any(), step.reward.tolist()) == ([True, False, False], False, [0, 1, 1])
    assert step.begins.tolist() == [True, False, False]
    assert step.observation[0].tolist() == [1.0, 0.0], "the next episode's first observation"
    assert lost.take_returns() == (1, 2.0), "what the last step gave counts all the same"
    (note,) = lost.take_notes()
    assert note.startswith("Forgetful resets within a step and loses final observations: the last step of each episode")
    assert lost.take_notes() == []
    for _ in range(4):
        step = lost.step(torch.ones(COUNT))
    assert step.terminated[1], "one that has terminated needs no final observation"
    assert not step.reset[1]


def test_what_is_not_finite_is_told_when_it_is_counted() -> None:
    class Broken(Counting):
        def step(self, action: Tensor, /) -> Any:
            seen, *rest = super().step(action)
            return seen.masked_fill(seen == 1.0, torch.inf), *rest

    broken = TensorEnvs(Broken("same_step"))
    broken.reset()
    assert broken.take_returns()[0] == 0
    broken.step(torch.zeros(COUNT))
    with pytest.raises(EnvFault, match="Broken gave an observation or a reward that is not finite"):
        broken.take_returns()


def test_what_cannot_be_known_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="Silent does not say when it resets an environment: give autoreset="):
        TensorEnvs(Silent())
    TensorEnvs(Silent(), autoreset="next_step")
    with pytest.raises(UserError, match=r"'observation' must be a tensor \[3, ...\]"):
        TensorEnvs(Numpy("next_step")).reset()


@pytest.mark.parametrize("mode", MODES)
def test_returns_are_those_of_whole_episodes(mode: Autoreset) -> None:
    made = TensorEnvs(Counting(mode, 1))
    made.reset()
    for _ in range(3 if mode == "same_step" else 4):
        made.step(torch.tensor([2]))
    assert made.take_returns() == (1, 4.0)
    made.step(torch.tensor([2]))
    assert made.take_returns() == (1, 4.0)
    assert made.take_returns()[0] == 0


def test_rows_of_such_environments_are_not_taken_for_a_stream() -> None:
    """A replay would let n-step returns and sequences run on into the next episode."""
    network = rollouts("same_step")[0].network
    made = TensorEnvs(Counting("same_step"))
    recorder = Recorder(ActorCriticPolicy(network, 1), COUNT, 2, lambda block: None)
    observation = made.reset()
    recorder.player.on_device(made.device)
    with pytest.raises(ValueError, match="reset within a step"):
        recorder.result(made.step(recorder.act(observation)))
