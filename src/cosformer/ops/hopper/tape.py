"""Under its former name."""

from cosformer.ops.hopper.launch_plan import HopperLaunchPlan as Tape

__all__ = ["Tape"]
