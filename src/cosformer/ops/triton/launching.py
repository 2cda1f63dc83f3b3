"""Triton's launcher without what it does around every start: hooks, and a look at each argument."""

import inspect
from collections.abc import Callable
from typing import Any

import triton

KNOWN = ("3.6", "3.7")  # whose launchers were looked into


def launcher(compiled: Any, programs: int) -> Callable[[int, list[Any]], None]:
    """A function of the stream and of all arguments, constants included, that starts what was compiled:
    the innermost one of Triton's own, where that is known."""
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if not triton.__version__.startswith(KNOWN):

        def start(stream: int, values: list[Any]) -> None:
            run(programs, 1, 1, stream, function, metadata, None, None, None, *values)

        return start
    # A kernel with descriptions is wrapped once more, in a function that would make them anew each time.
    described = bool(getattr(compiled.metadata, "tensordesc_meta", None))
    launch = inspect.getclosurevars(run.launch).nonlocals["launcher"] if described else run.launch
    if run.global_scratch_size or run.profile_scratch_size:
        raise NotImplementedError("kernels that need scratch memory are not played again.")
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    if not hasattr(run, "arg_annotations"):  # 3.6

        def play(stream: int, values: list[Any]) -> None:
            launch(programs, 1, 1, stream, function, *flags, None, None, metadata, None, None, None, *values)
    else:
        types = (run.arg_annotations, run.kernel_signature)

        def play(stream: int, values: list[Any]) -> None:
            launch(
                programs, 1, 1, stream, function, *flags, metadata, None, None, None, None, None, *types,
                values,
            )  # fmt: skip

    return play
