"""Pictures of an environment: made so that it can be drawn, one picture at a time, and tried before a run."""

from __future__ import annotations

import os
import pickle
from typing import BinaryIO

import cloudpickle
import gymnasium
import numpy as np

from shoal.envs import names, trial
from shoal.envs.faults import EnvFault, what_was_raised
from shoal.envs.making import make
from shoal.envs.names import Environment
from shoal.envs.options import parameters_of
from shoal.envs.spec import EnvSpec, Vectorizer
from shoal.envs.vector import Envs
from shoal.errors import UserError
from shoal.types import Array


def make_drawn(spec: EnvSpec, seed: int) -> Envs:
    """One environment that can be drawn, also where there is no screen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # or pygame looks for a screen, and says that there is none
    options = {"render_mode": "rgb_array"} if _takes_render_mode(spec) else {}
    try:
        return make(spec, 1, seed=seed, options=options, vectorizer="auto" if spec.on_device else _single(spec.env))
    except UserError as error:
        if "'render_mode'" in str(error) and "render_mode" not in spec.options:  # it was not the user who asked for it
            raise UserError(_wanted(spec.name)) from error
        raise


def _wanted(name: str) -> str:
    return (
        f"{name} gives no pictures: its render() must return an array [height, width, 3] of bytes; a factory that "
        "takes render_mode is given 'rgb_array'."
    )


def picture(made: Envs) -> Array:
    """What the environment looks like now, bytes [height, width, 3]."""
    wanted = _wanted(made.environment)
    try:
        found = made.picture()
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(
            f"{made.environment} needs a package to be drawn; run: pip install 'shoal[video]' ({error})"
        ) from None
    except ImportError as error:
        raise UserError(f"{made.environment} cannot be drawn: {error}") from None
    except Exception as error:
        raise UserError(f"{wanted} ({type(error).__name__}: {error})") from None
    if isinstance(found, list):
        found = found[-1] if found else None
    drawn = np.asarray(found) if found is not None else np.zeros(0)
    if drawn.ndim != 3 or drawn.shape[-1] != 3:
        raise UserError(wanted)
    return drawn.astype(np.uint8, copy=False)


def check_drawn(spec: EnvSpec) -> None:
    """One picture, before a run that is to be filmed: the user's code in a process of its own, since it may end it."""
    try:
        question = cloudpickle.dumps(spec)
    except Exception:
        _draw_one(spec)
        return
    patience = trial.PATIENCE
    code, answer = trial.ask(reply, question, lambda child, file: trial.while_it_answers(child, file, patience))
    if not answer:
        raise UserError(f"{spec.name} {trial.ending(code)}, when it was to be drawn: leave out --record-every.")
    if (sentence := pickle.loads(answer)) is not None:
        raise UserError(sentence)


def reply(question: BinaryIO, answer: BinaryIO) -> None:
    """In the child: a sentence, or None where there was a picture."""
    trial.begin()
    found = None
    try:
        _draw_one(pickle.load(question))
    except UserError as error:
        found = str(error)
    except BaseException as error:
        found = f"The environment cannot be drawn: {what_was_raised(error)}."
    answer.write(pickle.dumps(found))
    trial.leave(answer)


def _draw_one(spec: EnvSpec) -> None:
    try:
        made = make_drawn(spec, seed=0)
        try:
            made.reset()
            picture(made)
        finally:
            made.close()
    except EnvFault as fault:
        raise UserError(str(fault)) from fault


def _takes_render_mode(spec: EnvSpec) -> bool:
    """What is registered does; a factory, where it says so."""
    if not names.is_users_code(spec.env):
        return not spec.on_device
    parameters = parameters_of(names.resolve(spec.env))  # type: ignore[arg-type]  # the factory, where it is the user's
    return "render_mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _single(env: Environment) -> Vectorizer:
    """One by one, since vector versions are not drawn; a factory may make only vectors."""
    return "auto" if names.is_users_code(env) else "sync"
