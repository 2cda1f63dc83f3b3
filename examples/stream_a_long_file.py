"""Read a file of any length in constant memory: piece by piece, with a model all of whose heads have windows.

python examples/stream_a_long_file.py some.txt --model FOLDER
"""

import argparse
from pathlib import Path
from sysconfig import get_path

import torch

from cosformer.models import CosformerCache, CosformerConfig, CosformerForCausalLM

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("file", nargs="?", type=Path, default=Path(get_path("stdlib")) / "_pydecimal.py")
parser.add_argument("--model", help="folder of a saved model over bytes; left out, one with random weights")
parser.add_argument("--piece", type=int, default=8192)
args = parser.parse_args()

if args.model:
    model = CosformerForCausalLM.from_pretrained(args.model).eval()
else:  # windows that grow from layer to layer; a text may be longer than max_position_embeddings
    config = CosformerConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512,
        attention_parameters=[{"windows": [2, 4, 8, 16]}, {"windows": [4, 16, 64, 256]}],
    )  # fmt: skip
    model = CosformerForCausalLM(config).eval()
print("A text ends at the horizon." if model.config.bounded else "A text has no bound.")

cache = CosformerCache(model.config)
with args.file.open("rb") as file, torch.inference_mode():
    while piece := file.read(args.piece):
        ids = torch.frombuffer(bytearray(piece), dtype=torch.uint8).long()[None]
        logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        print(f"{file.tell():>9,} bytes read; {cache.nbytes:,} bytes carried; next: {logits.argmax():d}")
cache.save("after.safetensors")  # to go on tomorrow: CosformerCache.load("after.safetensors", model.config)
