"""Old weights in a new network: what fits, what does not and is said, what stays frozen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from shoal import optim
from shoal.errors import UserError
from shoal.nets.transfer import freeze, transfer


def network(hidden: int = 4, actions: int = 2, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Module()
    made.torso = nn.Linear(3, hidden)
    made.policy = nn.Linear(hidden, actions)
    return made


def weights_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().clone().numpy() for name, tensor in module.state_dict().items()}


def test_weights_that_fit_are_loaded_into_the_parameters_that_are_there() -> None:
    old, new = network(seed=1), network(seed=2)
    optimizer = optim.Local(new.parameters(), rate=0.1)
    transfer(new, weights_of(old))
    assert all(np.array_equal(one, other) for one, other in zip(weights_of(old).values(), weights_of(new).values()))
    assert torch.equal(optimizer.flat[:12].view(4, 3), old.torso.weight)


def test_layers_that_do_not_fit_are_all_listed_with_both_shapes_and_nothing_is_loaded() -> None:
    new = network(actions=5, seed=2)
    before = weights_of(new)
    old = weights_of(network()) | {"value.weight": np.ones((1, 4), np.float32)}
    with pytest.raises(UserError) as said:
        transfer(new, old)
    sentence = str(said.value)
    assert "policy.weight: old [2, 4], new [5, 4]; policy.bias: old [2], new [5]" in sentence
    assert "value.weight: old [1, 4], not in the network" in sentence
    assert "--restore-partial" in sentence
    assert all(np.array_equal(before[name], value) for name, value in weights_of(new).items())


def test_a_partial_transfer_loads_what_fits_and_says_what_it_skipped() -> None:
    old, new = network(seed=1), network(actions=5, seed=2)
    head = new.policy.weight.detach().clone()
    done = transfer(new, weights_of(old), partial=True)
    assert torch.equal(new.torso.weight, old.torso.weight)
    assert torch.equal(new.policy.weight, head)
    assert done.loaded == ("torso.weight", "torso.bias")
    assert done.lines() == [
        "restored 2 of 4 layers",
        "  not restored: policy.weight: old [2, 4], new [5, 4]",
        "  not restored: policy.bias: old [2], new [5]",
    ]


def test_nothing_that_fits_is_an_error_even_where_part_would_do() -> None:
    with pytest.raises(UserError, match="No layer of the old weights fits"):
        transfer(network(), {"other": np.ones(3)}, partial=True)


@pytest.mark.parametrize("partial", [False, True])
def test_weights_that_are_not_finite_are_refused(partial: bool) -> None:
    old = weights_of(network())
    old["policy.bias"][1] = np.nan
    new = network(seed=2)
    before = weights_of(new)
    with pytest.raises(UserError, match=r"not finite in policy\.bias"):
        transfer(new, old, partial=partial)
    assert all(np.array_equal(before[name], value) for name, value in weights_of(new).items())


def test_frozen_parameters_stay_and_the_others_learn() -> None:
    made = network()
    assert freeze(made, "torso") == ["torso.bias", "torso.weight"]
    before = weights_of(made)
    optimizer = optim.Local(made.parameters(), rate=0.1)
    optimizer.step(made.policy(made.torso(torch.ones(2, 3))).square().mean())
    after = weights_of(made)
    assert np.array_equal(before["torso.weight"], after["torso.weight"])
    assert not np.array_equal(before["policy.weight"], after["policy.weight"])


def test_patterns_are_those_of_a_shell_and_must_match_something_but_not_all() -> None:
    assert freeze(network(), "*.bias") == ["policy.bias", "torso.bias"]
    assert freeze(network(), "torso.weight,policy.bias") == ["policy.bias", "torso.weight"]
    with pytest.raises(UserError, match=r"--freeze torse matches no parameter: there are torso\.weight; torso\.bias"):
        freeze(network(), "torse")
    with pytest.raises(UserError, match="leaves nothing to train"):
        freeze(network(), "*")


def test_whole_numbers_are_no_weights() -> None:
    weights = weights_of(network())
    weights["torso.bias"] = weights["torso.bias"].astype(np.int64)
    with pytest.raises(UserError, match=r"torso\.bias: old \[4\] of int64, new \[4\]"):
        transfer(network(), weights)


def test_a_name_stands_for_its_own_parts_and_not_for_its_neighbours() -> None:
    module = network()
    module.torso_norm = nn.LayerNorm(3)
    assert freeze(module, "torso") == ["torso.bias", "torso.weight"]
