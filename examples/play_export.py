"""Play what `shoal export RUN` has written, without Shoal: python play_export.py FOLDER [ENV]."""

import json
import pathlib
import sys

import gymnasium
import numpy as np
import onnxruntime

folder, env = pathlib.Path(sys.argv[1]), gymnasium.make(sys.argv[2] if len(sys.argv) > 2 else "CartPole-v1")
contract = json.loads((folder / "contract.json").read_text())
session, names = onnxruntime.InferenceSession(folder / contract["file"]), [out["name"] for out in contract["outputs"]]
inputs = {each["name"]: each for each in contract["inputs"] if each["name"].startswith("memory/")}
memory = {name: np.zeros([1, *each["shape"][1:]], each["dtype"]) for name, each in inputs.items()}
(observation, _), total, ended = env.reset(seed=1), 0.0, False
while not ended:
    out = dict(zip(names, session.run(names, {"observation": observation[None], **memory})))
    observation, reward, terminated, truncated, _ = env.step(out["out/action"][0])
    memory = {name: out.get(f"out/{name}", np.float32([reward])) for name in memory}
    total, ended = total + float(reward), terminated or truncated
print(total)
