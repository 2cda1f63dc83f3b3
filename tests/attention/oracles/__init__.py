"""Independent implementations of the mechanisms: one file a comparison, found by looking into this folder.

A file imports what it compares with inside its functions and defines

    MECHANISM = "performer"            the registered name
    PACKAGE = "performer-pytorch"      the distribution, as pip knows it
    compare()                          yields (what, ours, theirs), tensors that have to be equal

in float32 unless the package can do better; optionally TOLERANCE, the largest error allowed relative to the
largest entry (1e-5). `python -m tests.attention.oracles` prints the agreement of each and records it in
docs/oracles.json, from which the table of attentions is rendered.
"""

import importlib
import importlib.metadata
import json
import pkgutil
from pathlib import Path

import torch

RECORD = Path(__file__).parents[3] / "docs" / "oracles.json"


def comparisons():
    """The modules of this folder, by name."""
    found = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in found}


def version(module):
    """Of the package to compare with; None where it is not installed."""
    try:
        return importlib.metadata.version(module.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def errors(module):
    """(what, largest difference relative to the largest entry) of each thing compared."""
    torch.manual_seed(0)
    found = []
    for what, ours, theirs in module.compare():
        ours, theirs = ours.detach().double(), theirs.detach().double()
        found.append((what, float((ours - theirs).abs().max() / theirs.abs().max())))
    return found


def record():
    """Adds what can be compared here to the record; what cannot stays as it was."""
    known = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for name, module in comparisons().items():
        if version(module) is None:
            print(f"{name}: {module.PACKAGE} is not installed; left as it was")
            continue
        worst = max(error for _, error in errors(module))
        about = {"mechanism": module.MECHANISM, "package": module.PACKAGE, "version": version(module)}
        known[name] = {**about, "error": worst}
        print(f"{name}: {worst:.1e}")
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
