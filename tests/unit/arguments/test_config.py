"""Configs: presets set what was not given, and bad values are refused in one sentence."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

import pytest

from shoal import config
from shoal.errors import UserError


@config.config()
class Group:
    env: str = "CartPole-v1"
    preset: str = "auto"
    actors: config.Count = 1
    batch: config.Count = 32
    queue: config.Count = 128

    @config.Constraint
    def _a_batch_fits(self) -> None:
        if self.queue < self.batch:
            raise UserError(f"--queue {self.queue} can never hold a batch of {self.batch} items.")


@config.config(batch=64)
class Config(Group):
    learning_rate: config.Amount = 1e-3
    gamma: config.Share = 0.99
    optimizer: Literal["adam", "rmsprop"] = "adam"
    mode: Literal["fast", "slow"] = "fast"
    hidden: config.Widths = (64, 64)
    clip: config.Positive | None = None
    threads: config.Count | Literal["auto"] = "auto"


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"batch": 32, "learning_rate": 2e-3},
    "atari": {"batch": 16, "hidden": (512,)},
}


def test_a_preset_sets_only_what_was_not_given() -> None:
    made = config.apply_preset(Config(learning_rate=5e-4), PRESETS, "classic")
    assert (made.batch, made.learning_rate, made.preset) == (32, 5e-4, "classic")


def test_a_value_that_was_given_stays_even_when_it_equals_the_default() -> None:
    assert config.apply_preset(Config(batch=64), PRESETS, "classic").batch == 64


def test_replacing_a_field_still_leaves_the_others_to_the_preset() -> None:
    made = config.apply_preset(replace(Config(env="Other-v0"), batch=8), PRESETS, "classic")
    assert (made.batch, made.learning_rate) == (8, 2e-3)


def test_what_was_given_survives_pickling() -> None:
    assert config.given(pickle.loads(pickle.dumps(Config(batch=64)))) == {"batch"}


def test_replacing_a_field_keeps_what_was_given_also_where_it_equals_the_default() -> None:
    made = replace(Config(batch=64), env="Other-v0")
    assert config.given(made) == {"batch", "env"}
    assert config.given(replace(replace(made, gamma=0.99), actors=1)) == {"batch", "env", "gamma", "actors"}
    assert config.apply_preset(made, PRESETS, "classic").batch == 64


def test_what_a_preset_sets_was_not_given() -> None:
    made = config.apply_preset(Config(gamma=0.9), PRESETS, "classic")
    assert config.given(made) == {"gamma"}
    assert config.apply_preset(replace(made, preset="atari"), PRESETS, "classic").batch == 16


def test_what_was_given_is_no_field() -> None:
    assert "_given" not in {field.name for field in fields(Config())}
    assert Config(batch=64) == Config()
    assert hash(Config(batch=64)) == hash(Config())


@pytest.mark.parametrize(("kind", "name"), [("atari", "atari"), ("other", "none")])
def test_auto_is_the_preset_of_the_environments_kind_or_none(kind: str, name: str) -> None:
    assert config.apply_preset(Config(), PRESETS, kind).preset == name


def test_a_preset_can_be_chosen_by_name_or_refused() -> None:
    assert config.apply_preset(Config(preset="atari"), PRESETS, "classic").hidden == (512,)
    assert config.apply_preset(Config(preset="none"), PRESETS, "classic").batch == 64
    with pytest.raises(UserError, match=r"--preset clasic is not known.*Did you mean classic"):
        config.apply_preset(Config(preset="clasic"), PRESETS, "classic")


def test_the_presets_line_tells_what_it_set_and_what_the_user_set_instead() -> None:
    made = config.apply_preset(Config(batch=8), PRESETS, "classic")
    assert (
        config.preset_line(made, PRESETS, "classic")
        == "preset classic (a classic environment): learning_rate=0.002; yours: batch=8"
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"actors": 0}, "--actors 0 is too small: give at least 1."),
        ({"batch": 0}, "--batch 0 is too small"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0 is too small: give at least 0."),
        ({"learning_rate": float("nan")}, "--learning-rate nan is not a finite number"),
        ({"gamma": 1.5}, "--gamma 1.5 is out of range"),
        ({"optimizer": "adm"}, "--optimizer adm is not known: choose one of adam, rmsprop. Did you mean adam?"),
        ({"mode": "slwo"}, "--mode slwo is not known: choose one of fast, slow. Did you mean slow?"),
        ({"hidden": (8, 0)}, "--hidden 8 0 has a layer without a unit"),
        ({"clip": 0.0}, "--clip 0.0 is too small: give a number above 0."),
        ({"threads": 0}, "--threads 0 is too small: give at least 1."),
        ({"threads": "all"}, "--threads 'all' is no such value: give a whole number or auto."),
        ({"threads": None}, "--threads None is no such value: give a whole number or auto."),
        ({"queue": 3}, "--queue 3 can never hold a batch of 64 items"),
    ],
)
def test_a_bad_value_is_refused_with_its_option_and_the_remedy(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        config.validate(Config(**values))
    assert str(raised.value).startswith(sentence)


def test_a_config_may_have_another_default_for_a_field_of_its_group() -> None:
    assert (Config().batch, Group().batch) == (64, 32)
    assert config.given(Config()) == frozenset()


def test_a_good_config_passes() -> None:
    config.validate(Config())


def test_a_config_comes_back_from_its_record() -> None:
    record = {"batch": 8, "hidden": [32, 16], "of a later version": 1}
    assert config.from_record(Config, record) == Config(batch=8, hidden=(32, 16))


def test_a_null_where_a_field_had_none_before_is_its_default() -> None:
    assert config.from_record(Config, {"threads": None, "clip": None, "batch": 8}) == Config(batch=8)


def test_a_small_config_has_enough_of_everything_for_a_trial() -> None:
    @config.config()
    class Amounts:
        many: Annotated[config.Count, config.Enough(4)] = 64
        ratio: Annotated[config.Amount, config.Enough(0.0)] = 2.0
        few: Annotated[config.Count, config.Enough(8)] = 3
        rate: config.Amount = 0.5

    @config.config()
    class Page(Amounts):
        many: config.Count = 32  # of its own, for another default or another text

    made = config.small(Page())
    assert (made.many, made.ratio, made.few, made.rate) == (4, 0.0, 3, 0.5)
