"""A function and many items -> its results in the order of the items, worked on here, in processes or on Ray.

joblib gives one interface to all three. Few results are ever waiting, so memory does not grow with the
number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import joblib

from pipeline.config import Runtime
from pipeline.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], runtime: Runtime, *, here: bool = False
) -> Iterator[Result]:
    """`work` must be picklable. `here`: there is too little to do for processes of their own.

    Raises what `work` raises, ConfigError if Ray is asked for and is not installed.
    """
    workers = runtime.workers or joblib.cpu_count()
    if here or (runtime.executor == "local" and workers == 1):
        yield from map(work, items)
        return
    with _backend(runtime):
        run = joblib.Parallel(n_jobs=workers, return_as="generator", batch_size=1, pre_dispatch=2 * workers)
        yield from run(joblib.delayed(work)(item) for item in items)


def _backend(runtime: Runtime) -> AbstractContextManager[Any]:
    if runtime.executor == "local":
        return nullcontext()
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise ConfigError(
            "conf/runtime/default.yaml: executor: ray is not installed: `.venv/bin/pip install ray`, or set "
            "it to local"
        ) from None
    if not ray.is_initialized():
        ray.init(address=runtime.ray_address, log_to_driver=False, include_dashboard=False)
    register_ray()
    backend: AbstractContextManager[Any] = joblib.parallel_config(backend="ray")
    return backend
