"""Under its former name."""

from cosformer.ops.gpu.launch_cache import Replay as Play
from cosformer.ops.gpu.launch_cache import inference_key as kind
from cosformer.ops.gpu.launch_cache import lookup as known
from cosformer.ops.gpu.launch_cache import store_replay as remember

__all__ = ["Play", "kind", "known", "remember"]
