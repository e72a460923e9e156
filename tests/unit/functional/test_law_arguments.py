"""How laws are called: what a law is about may come first, everything else by name; wrong shapes are named."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import shoal.functional
from shoal.functional.gae import gae
from shoal.functional.n_step import bootstrap
from shoal.functional.policy_gradient import masked_mean
from shoal.functional.q import importance_mean
from shoal.functional.shapes import check_shapes
from shoal.functional.vtrace import vtrace


def laws() -> dict[str, Callable[..., Any]]:
    found = {}
    for module in pkgutil.iter_modules(shoal.functional.__path__):
        if module.name not in ("arrays", "distributions"):  # what acting computes with
            part = importlib.import_module(f"shoal.functional.{module.name}")
            for name, law in vars(part).items():
                public = inspect.isfunction(law) and law.__module__ == part.__name__ and not name.startswith("_")
                if public and name not in ("epsilon_greedy", "gaussian_noise"):
                    found[f"{module.name}.{name}"] = law
    return found


@pytest.mark.parametrize("name", laws())
def test_a_law_takes_at_most_one_argument_by_position(name: str) -> None:
    parameters = inspect.signature(laws()[name]).parameters.values()
    positional = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 1, f"{name} takes {positional} by position"


def test_there_are_as_many_laws_as_one_would_think() -> None:
    assert len(laws()) >= 35


def test_a_wrong_shape_is_named_where_broadcasting_would_hide_it() -> None:
    rows = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"^rho has the shape \[4, 1\] where \[4, 3\] is needed$"):
        vtrace(values=torch.zeros(5, 3), rewards=rows, discounts=rows, rho=rows[:, :1])
    with pytest.raises(ValueError, match="rewards has the shape"):
        gae(values=torch.zeros(4, 3), rewards=rows, discounts=rows, valid=rows.bool())
    with pytest.raises(ValueError, match="importance has the shape"):
        importance_mean(torch.zeros(4), importance=torch.zeros(4, 1))
    with pytest.raises(ValueError, match="discounts has the shape"):
        bootstrap(returns=torch.zeros(4), discounts=torch.zeros(1), values=torch.zeros(4))
    with pytest.raises(ValueError, match="x has the shape"):
        masked_mean(torch.zeros(4), valid=torch.ones(4, 3, dtype=torch.bool), count=torch.tensor(12))
    check_shapes((4, 3), rewards=rows)
