"""Under its former name."""

from cosformer.ops.triton.partition import states_to_keep as states_to_keep
