"""Classify long documents: which package of the standard library a stretch of 4,096 bytes comes from.

python examples/classify_long_documents.py --steps 60
"""

import argparse
from pathlib import Path
from sysconfig import get_path

import torch

from cosformer.models import CosformerConfig, CosformerForSequenceClassification

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--length", type=int, default=4096)
args = parser.parse_args()
NAMES = ["asyncio", "email", "json"]
files = [sorted(Path(get_path("stdlib"), name).glob("*.py")) for name in NAMES]
data = [torch.tensor(list(b"\n".join(p.read_bytes() for p in of))) for of in files]


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(len(NAMES), (size,))
    starts = [int(torch.randint(len(data[label]) - args.length, ())) for label in labels]
    rows = [data[label][s : s + args.length] for label, s in zip(labels, starts, strict=True)]
    return torch.stack(rows), labels


config = CosformerConfig(hidden_size=64, num_hidden_layers=2, max_position_embeddings=8192, num_labels=3)
model = CosformerForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(1, args.steps + 1):
    ids, labels = batch(8)
    found = model(ids, labels=labels)
    found.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    right = (found.logits.argmax(-1) == labels).float().mean()
    print(f"step {step}: {right:.0%} right, loss {found.loss:.3f}")
