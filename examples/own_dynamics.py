"""Trains the plugin damped.py and standard attention on a small text in Python, then samples from the trained model.

python examples/own_dynamics.py [--steps 200]
"""

import argparse
import inspect
import tempfile
from pathlib import Path

import coupledqk

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    coupledqk.load_plugin(Path(__file__).with_name("damped.py"))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "argparse.py")
        text.write_text(inspect.getsource(argparse))
        for variant in ("standard", "damped"):
            config = coupledqk.recipe(
                "mini-modern", variant, corpus=str(text), tokenizer="bytes", steps=steps, eval_every=max(1, steps // 2)
            )
            run = coupledqk.train(config, Path(folder, variant))
            print(f"{variant}: {run.result['best']['bits_per_byte']:.2f} bits per byte")
        print("".join(run.generate("    def ", max_tokens=80, seed=0)))
