"""What every test shares: one computing thread, one Ray cluster, and the proof that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest

import logged_data
from leftovers import left_behind, shared_segments

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before torch is imported anywhere
# Virtual machines were seen that offer AMX and end who computes bfloat16 with it; without it they do as others.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup has it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """The session, and every process it starts, has a temporary directory of its own; at the end it must be empty."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own files stay where they were
    directory = tempfile.mkdtemp(prefix="st-", dir="/tmp" if os.path.isdir("/tmp") else None)  # short, for sockets
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    os.environ["XDG_STATE_HOME"] = state = tempfile.mkdtemp(prefix="shoal-state-", dir="/tmp")  # no user's own
    segments = shared_segments()
    yield
    shutil.rmtree(state, ignore_errors=True)
    remains = left_behind(segments)
    shutil.rmtree(directory, ignore_errors=True)
    assert not remains, f"the test session left behind: {remains}"


@pytest.fixture(scope="session", autouse=True)
def place_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where datasets lie that several tests read."""
    logged_data.PLACE[:] = [tmp_path_factory.mktemp("logged")]


@pytest.fixture(scope="session")
def ray_cluster(nothing_left_behind: None) -> Iterator[str]:
    """One Ray cluster for the whole session, since starting it takes seconds; its value is the address."""
    ray = pytest.importorskip("ray")
    directory = tempfile.mkdtemp()
    os.environ.setdefault("RAY_worker_niceness", "0")  # or its nodes starve where much else runs
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,  # Ray takes our word for it
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=1 << 27,
        _temp_dir=directory,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    shutil.rmtree(directory)
