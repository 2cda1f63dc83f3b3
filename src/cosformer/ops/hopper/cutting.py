"""Under its former name."""

from cosformer.ops.hopper.partition import head_width as width_of
from cosformer.ops.hopper.partition import states_to_keep
from cosformer.ops.hopper.partition import tile_list_rows as of_full_list

__all__ = ["of_full_list", "states_to_keep", "width_of"]
