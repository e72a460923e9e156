"""The `shoal` command.

Nothing heavy is imported before it is needed: the first thing that `shoal train` does is to start the process that
imports torch for the nodes, on the other core.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shoal
from shoal.arguments.command_options import Output, Trust
from shoal.arguments.config_files import OWNERS, take_config
from shoal.arguments.words import HELP, Typed, peek, read
from shoal.cli import commands, streams
from shoal.cli.commands.algorithm import algorithm_lines, configure, take_algorithm, warm
from shoal.cli.commands.common import ERROR, EXAMPLES, INTERRUPTED, OK, USAGE, fit, print_json, warn
from shoal.errors import UserError, did_you_mean
from shoal.runs.options import Result, RunOptions

if TYPE_CHECKING:
    from shoal.experiment.experiment import Experiment

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
OVERVIEW = """\
usage: shoal COMMAND …

Train
  train ALGORITHM --env ENV  until the task is solved, or a stop rule is met
  train --config FILE.toml   the same, with options in a file
  doctor --env ENV           examine your environment and network before that
  resume RUN                 go on with a run that was interrupted or killed
  scale RUN actors=N         more or fewer actors for a run that goes on
  sweep FILE.toml            try values of options, over seeds
  algorithms                 what can be trained with

Look at runs (RUN is a folder that a training has printed, such as runs/NAME)
  runs                       a list of them, with their state
  status RUN                 how one stands, also while it goes on
  config RUN                 its options, as a file for train --config
  plot RUN...                curves, with intervals over seeds
  compare RUN...             returns over seeds, with intervals
  diff RUN RUN               in what two of them differ

Data to learn from (DATASET is a folder)
  data import SOURCE         Minari, Parquet, .npz or a function of yours, once
  data show DATASET          what is in it
  data check DATASET         whether it is what it says
  data export DATASET        as Minari, Parquet or .npz

Use what was trained
  eval RUN                   play fresh episodes
  record RUN                 film it: mp4 or gif
  collect RUN --output DATA  play episodes and keep them as a dataset
  judge RUN --data DATASET   what it would earn, by logged data alone
  export RUN                 as a file that needs no Shoal: ONNX or torch
  serve RUN                  answer programs that ask for actions, over a port

Measure and prove
  plan ALGORITHM             what a target of steps per second needs
  bench throughput ALGORITHM steps per second of the same program
  bench limits ALGORITHM     what this machine allows, part by part
  bench update ALGORITHM     where the time of an update goes
  bench replay               items per second of the replay service
  bench checkpoints          what checkpoints cost a learner
  verify ALGORITHM           that a killed run resumes to the last bit

  completion                 a script that completes these words in bash and zsh
  --version

Every command has --help. The quickest start: shoal train ppo --env CartPole-v1"""

COMPLETION = """\
usage: shoal completion

Print a script with which bash completes commands, algorithms, options, choices
and files. Once, and again after Shoal was updated:

  shoal completion > ~/.shoal-completion
  echo 'source ~/.shoal-completion' >> ~/.bashrc

In zsh, ~/.zshrc needs a line before that:

  autoload -U bashcompinit && bashcompinit"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    started = time.monotonic() - _age()
    for variable in THREADS:  # before numpy and torch are imported: a run has many processes, each with one thread
        os.environ.setdefault(variable, "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    before = _end_like_interrupt()
    try:
        code = _dispatch(words, started)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a failure can be told
        return code
    except UserError as error:
        warn(str(error))
        return USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        if not _unheard():
            raise
        return ERROR
    except OSError as error:
        if not streams.unwritable():
            raise
        warn(f"standard output cannot be written: {error.strerror}")
        return ERROR
    finally:
        _cool()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_like_interrupt() -> dict[int, Any]:
    """From the first line on, SIGTERM and SIGHUP (a closed terminal) end like Ctrl-C; what handled them before."""
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it ignored
            before[number] = signal.signal(number, signal.default_int_handler)
    return before


def _unheard() -> bool:
    """Whether nobody reads what is printed any more, as after `shoal … | head`; nothing more is then said about it."""
    asked = select.poll()
    asked.register(sys.stdout.fileno())
    if not any(event & select.POLLERR for _, event in asked.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _dispatch(words: Sequence[str], started: float) -> int:
    own: dict[str, Callable[[Sequence[str], float], int]] = {
        "train": _train,
        "resume": _resume,
        "algorithms": _algorithms,
        "completion": _completion,
    }
    if words and words[0] == "help":  # shoal help train is shoal train --help
        words = [*words[1:], "--help"]
    if not words or words[0] in HELP:
        print(OVERVIEW)
        return OK
    if words[0] == "--version":
        print(f"shoal {shoal.__version__}")
        return OK
    if words[0] in commands.NAMES:
        return commands.run(words[0], words[1:])
    if words[0] not in own:
        near = did_you_mean(words[0], [*own, *commands.NAMES])
        raise UserError(f"There is no command {words[0]}: see shoal --help.{near}")
    return own[words[0]](words[1:], started)


# ---- train -----------------------------------------------------------------------------------------------------------


def _train(words: Sequence[str], started: float) -> int:
    file, words = take_config(words)
    if file is not None and (not words or words[0].startswith("-")):
        words = [file.named_algorithm(), *words]
    name, words = take_algorithm("train", words)
    words = words if file is None else [*file.words(), *words]
    warm(words)
    if not any(word in HELP for word in words):  # the imports that follow take seconds
        on = peek(words, "env", peek(words, "data", "its environment"))
        print(f"starting {name} on {on} …", file=sys.stderr, flush=True)
    if file is not None:
        from shoal.runs import registry

        file.check([*OWNERS, registry.load(name).Config])
    if any(word in HELP for word in words):
        configure("train", name, words, RunOptions, Output, Trust)  # prints them, and ends
    from shoal.experiment.training import begin

    cfg, typed = _typed(name, words, f"shoal train {name}")
    as_json = typed.make(Output).json
    begun = begin(name, typed.make(cfg), typed.values[RunOptions], started, typed.make(Trust).trust, warn)
    if not isinstance(begun, Result):
        return _run(begun, as_json)
    print(f"the run in {begun.run_dir} has ended (stopped by {begun.stopped_by})", file=sys.stderr)
    if as_json:
        print_json(begun.as_dict())
    return OK


def _typed(algorithm: str, words: Sequence[str], command: str) -> tuple[type[Any], Typed]:
    """The algorithm's config class, and what was typed of it, of the run's options and of the command's."""
    from shoal.runs import registry

    cfg = registry.load(algorithm).Config
    return cfg, read(words, [RunOptions, Output, Trust, cfg], command)


def _resume(words: Sequence[str], started: float) -> int:
    if not words or words[0] in HELP:
        print(
            "usage: shoal resume RUN [OPTIONS]\n\n"
            "Go on with a run that was interrupted or killed, from its newest checkpoint.\n"
            "Options are those of shoal train: what is given takes the place of what the\n"
            "run was started with.\n\nFor example:\n  " + "\n  ".join(EXAMPLES["shoal resume"])
        )
        return OK if words else USAGE
    if words[0].startswith("-"):
        raise UserError(f"shoal resume needs a run directory first: shoal resume runs/NAME {' '.join(words)}")
    warm(words[1:])
    print(f"going on with {words[0]} …", file=sys.stderr, flush=True)
    from shoal.experiment.training import go_on
    from shoal.runs import records

    path = Path(words[0])
    algorithm = records.admit_algorithm(path, "--trust" in words)
    cfg, typed = _typed(algorithm, words[1:], "shoal resume")
    begun = go_on(path, typed.values[RunOptions], typed.values[cfg], started, trust=typed.make(Trust).trust)
    return _run(begun, typed.make(Output).json)


def _run(experiment: Experiment, as_json: bool) -> int:
    from shoal.experiment import view
    from shoal.runtime import RunFailed

    with streams.kept():
        result, failure = experiment.run(view.choose(quiet=False, json=as_json))
    stream = sys.stderr if as_json else sys.stdout
    playable = experiment.env.at_hand and not experiment.env.outside
    print(fit("\n".join(view.summary(result, playable)), stream), file=stream, flush=True)
    if failure is not None:
        if isinstance(failure, RunFailed) and failure.traceback:
            print(failure.traceback.rstrip(), file=sys.stderr)
        warn(str(failure))
    if as_json:
        print_json(result.as_dict())
    return ERROR if failure is not None else result.exit_code


# ---- the other commands ----------------------------------------------------------------------------------------------


def _algorithms(words: Sequence[str], started: float) -> int:
    if words and words[0] not in HELP:
        raise UserError(f"shoal algorithms takes no arguments, not {' '.join(words)}.")
    from shoal.runs import registry

    print(algorithm_lines(registry.names()))
    return OK


def _completion(words: Sequence[str], started: float) -> int:
    if words:
        if words[0] not in HELP:
            raise UserError(f"shoal completion takes no arguments, not {' '.join(words)}.")
        print(COMPLETION)
        return OK
    from shoal.arguments.usage import completion_script
    from shoal.runs import registry

    others: dict[str, list[type[Any]]] = {"train": [RunOptions, Output, Trust], "resume": [RunOptions, Output, Trust]}
    others |= commands.options()
    others |= {"algorithms": [], "completion": []}
    algorithms = {name: [registry.load(name).Config] for name in registry.names()}
    print(completion_script(others, algorithms, ("train", *commands.TAKE_ALGORITHM)))
    return OK


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _cool() -> None:
    """End what `warm` started, when no run has taken it over."""
    local = sys.modules.get("shoal.runtime.local.run")
    if local is not None:
        local.cool()


def _age() -> float:
    """Seconds since this process was started, where the system tells; imports before `main` count too."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0
    return age if 0.0 <= age < 60.0 else 0.0


if __name__ == "__main__":
    sys.exit(main())
