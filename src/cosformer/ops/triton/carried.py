"""Under its former name."""

from cosformer.ops.gpu.carried_state import State as State
