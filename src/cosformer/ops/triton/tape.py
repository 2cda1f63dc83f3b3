"""Under its former name."""

from typing import Any

from cosformer.ops.gpu.launch_cache import cached_call
from cosformer.ops.gpu.launch_plan import LaunchPlan


def call(
    function: Any, inputs: Any, settings: Any, *, again: bool, kind: type[LaunchPlan] = LaunchPlan
) -> Any:
    return cached_call(function, inputs, settings, replayable=again, plan_type=kind)
