"""Play what `shoal export RUN` has written, without Shoal: python play_export.py FOLDER [ENV]."""

import json
import pathlib
import sys

import gymnasium
import numpy as np
import onnxruntime

folder = pathlib.Path(sys.argv[1])
session = onnxruntime.InferenceSession(folder / json.loads((folder / "contract.json").read_text())["file"])
inputs = {each.name: (each.type, each.shape) for each in session.get_inputs()}
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
env = gymnasium.make(sys.argv[2] if len(sys.argv) > 2 else "CartPole-v1")
observation, _ = env.reset(seed=1)
memory = {name: np.zeros([1, *shape[1:]], kinds[kind]) for name, (kind, shape) in inputs.items() if "memory" in name}
total, ended = 0.0, False
while not ended:
    out = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, {"observation": observation[None], **memory}))
    )
    observation, reward, terminated, truncated, _ = env.step(out["out/action"][0])
    memory = {name: out.get(f"out/{name}", np.float32([reward])) for name in memory}
    total, ended = total + float(reward), terminated or truncated
print(total)
