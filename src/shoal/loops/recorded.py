"""What actors do, kept as a dataset: the replay service, where all their rows come together, writes them down."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium import spaces

from shoal.data import BadData, DatasetWriter, Origin, is_dataset
from shoal.data.cutting import Cutter
from shoal.data.writer import LateWriter
from shoal.replay import Block, Inserted, Replay
from shoal.services.metrics import Metrics, Reporter


@dataclass(frozen=True)
class RecordPlan:
    """Where to, and of what environment."""

    path: str
    observation_space: spaces.Space[Any]  # of one frame
    action_space: spaces.Space[Any]
    native_action_space: spaces.Space[Any] | None = None
    env: str = ""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""  # for a person


class Recording:
    """Blocks of all writers in, whole episodes out. One that cannot be written ends recording and never the run."""

    def __init__(self, plan: RecordPlan, metrics: Metrics) -> None:
        self._plan, self._metrics = plan, metrics
        self._goes_on = is_dataset(Path(plan.path))
        make = partial(
            DatasetWriter,
            plan.path,
            plan.observation_space,
            plan.action_space,
            native_action_space=plan.native_action_space,
            env=plan.env,
            env_options=plan.env_options,
            origin=Origin(plan.text),
        )
        self._writer: LateWriter | None = LateWriter(make)
        if self._goes_on:
            self._writer.go_on(Path(plan.path))
        self._lock = threading.Lock()
        self._lives: dict[str, tuple[str, Cutter]] = {}  # of each writer the life, and its open episodes

    def take(self, block: Block) -> None:
        with self._lock:
            if self._writer is None:
                return
            try:
                for _, episode in self._cutter(block).feed(block.columns):
                    self._writer.append(episode)
            except BadData as error:
                Reporter(self._metrics).note(f"recording has ended: {error}")
                self._close()

    def _cutter(self, block: Block) -> Cutter:
        """A writer whose stream began without us is in the middle of episodes, and so it may be where a run goes on."""
        life, cutter = self._lives.get(block.writer, ("", None))
        if cutter is None or life != block.life:
            space = self._plan.action_space
            bounds = (space.low, space.high) if isinstance(space, spaces.Box) else ()
            known = block.first_row == 0 and not self._goes_on
            cutter = Cutter(*bounds, whole=known)
            self._lives[block.writer] = block.life, cutter
        return cutter

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except BadData:
                pass  # told before, or the disk is full: what was committed stays


class RecordedReplay(Replay):
    """A replay that keeps what it is sent."""

    def __init__(self, *given: Any, recording: RecordPlan, metrics: Metrics, **options: Any) -> None:
        super().__init__(*given, **options)
        self._recording = Recording(recording, metrics)

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        result = super().insert(block, timeout)
        if not result.repeated:
            self._recording.take(block)
        return result

    def close(self, table: str | None = None) -> None:
        super().close(table)
        if table is None:
            self._recording.close()
