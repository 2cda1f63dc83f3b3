"""Triton's innermost launch function, without the hooks and the argument checks around it."""

import inspect
from collections.abc import Callable
from typing import Any

KNOWN_VERSIONS = ("3.6", "3.7")  # of Triton, whose launchers were read


def launcher(compiled: Any, programs: int) -> Callable[[int, list[Any]], None]:
    """A function of the stream and of all argument values, constants included, that launches `compiled` on
    `programs` CTAs. Other versions of Triton than KNOWN_VERSIONS get the public launcher."""
    import triton

    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if not triton.__version__.startswith(KNOWN_VERSIONS):

        def launch_checked(stream: int, values: list[Any]) -> None:
            run(programs, 1, 1, stream, function, metadata, None, None, None, *values)

        return launch_checked
    # A kernel with tensor descriptors has one more wrapper, which would encode them at every launch.
    has_descriptors = bool(getattr(compiled.metadata, "tensordesc_meta", None))
    innermost = inspect.getclosurevars(run.launch).nonlocals["launcher"] if has_descriptors else run.launch
    if run.global_scratch_size or run.profile_scratch_size:
        raise NotImplementedError("a kernel that needs scratch memory of its own cannot be replayed.")
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    if not hasattr(run, "arg_annotations"):  # Triton 3.6

        def launch(stream: int, values: list[Any]) -> None:
            innermost(
                programs, 1, 1, stream, function, *flags, None, None, metadata, None, None, None, *values
            )
    else:
        types = (run.arg_annotations, run.kernel_signature)

        def launch(stream: int, values: list[Any]) -> None:
            innermost(
                programs, 1, 1, stream, function, *flags, metadata, None, None, None, None, None, *types,
                values,
            )  # fmt: skip

    return launch
