"""Train a language model over bytes on the source of Python's standard library, and let it write.

python examples/train_a_byte_lm.py --steps 300          (stopped with Ctrl-C, the same command goes on)
"""

import argparse

from cosformer.models import CosformerForCausalLM, byte_tokenizer
from cosformer.training import Run, best, train

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--attention", default="cosformer")
parser.add_argument("--folder", default="runs/byte-lm")
args = parser.parse_args()

run = Run(
    task="python",
    task_settings={"length": args.length, "held_out": 64 * args.length},  # bytes to judge by
    attention=args.attention,
    model={"hidden_size": 128, "max_position_embeddings": 8192, "position": "rotary"},
    steps=args.steps,
    batch_size=8,
    learning_rate=2e-3,
    warmup=args.steps // 10,
    eval_every=max(1, args.steps // 3),
    data="loader",
)
record = train(run, args.folder, results=f"{args.folder}/results.jsonl")
print(f"{record['metric']['test']} after {record['steps']} steps")

tokenizer = byte_tokenizer()
prompt = tokenizer("def ", return_tensors="pt")
model = CosformerForCausalLM.from_pretrained(best(args.folder)).eval()
written = model.generate(**prompt, max_new_tokens=100, do_sample=True, temperature=0.8)
print(tokenizer.decode(written[0]))
