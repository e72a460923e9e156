"""Options of environments: what can be known of them before the environment is made, told in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from typing import Any

from shoal.errors import UserError, did_you_mean

OF_GYMNASIUM = ("max_episode_steps", "render_mode", "disable_env_checker")  # what gymnasium.make takes itself
OURS = {  # what gymnasium.make and make_vec are given by us
    "id": "name the environment with --env",
    "num_envs": "give --envs-per-actor",
    "vectorization_mode": "give --vectorizer",
}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def parameters_of(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of what makes an environment; none where it does not tell them, as some built-in ones."""
    try:
        return inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return {}


def check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any], beside: Iterable[str] = ()) -> None:
    """Refuse an option that the maker of an environment does not take, or whose default is of another type.

    `beside` are names that somebody else takes. A maker that takes any name is only looked at for types.
    """
    parameters = parameters_of(maker)
    taken = [key for key, parameter in parameters.items() if parameter.kind in _NAMED]
    open_ended = not parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key, value in options.items():
        if key in OURS and beside:
            raise UserError(f"{name}: the option {key!r} is not yours to give: {OURS[key]}.")
        if key == "max_episode_steps" and key in beside and not _is_count(value):
            raise UserError(f"{name}: the option {key}={value!r} is no such value; give a whole number from 1 up.")
        if key in taken:
            if (wanted := _wanted(parameters[key].default, value)) is not None:
                raise UserError(f"{name}: the option {key}={value!r} is no such value; give {wanted}.")
        elif not open_ended and key not in beside:
            raise UserError(unknown_option(name, key, [*taken, *beside]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def unknown_option(name: str, key: str, taken: Iterable[str]) -> str:
    taken = sorted({*taken} - {"self", "num_envs", "disable_env_checker"})
    remedy = did_you_mean(key, taken) or (f" It takes {', '.join(taken)}." if taken else " It takes none.")
    return f"{name} has no option {key!r}.{remedy}"


def _wanted(default: Any, value: Any) -> str | None:
    """What an option with this default takes, where the value is plainly something else. None, and any default that is
    no number, text or truth value, says nothing."""
    if default is None or default is inspect.Parameter.empty or value is None:
        return None
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "True or False"
    if isinstance(default, Number):
        return None if isinstance(value, Number) and not isinstance(value, bool) else "a number"
    if isinstance(default, str) and isinstance(value, bool | int | float):
        return f"text, in quotes if it looks like something else ({value!r} is {type(value).__name__})"
    return None
