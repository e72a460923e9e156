"""`shoal export`: a trained policy as a file that needs no Shoal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.cli.commands.common import OK, one_run, parse, print_json


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written."""

    format: Literal["onnx", "torch"] = "onnx"
    """onnx: for onnxruntime and others; torch: for torch.export.load."""
    output: str | None = None
    """A new or empty folder; default: export-FORMAT in the run directory."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


OPTIONS = (ExportOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Write the greedy policy of a run (RUN), of its best checkpoint (RUN:best) or of one checkpoint's folder as a "
        "file, with a contract and recorded inputs and outputs, against which it was checked."
    )
    typed = parse(words, "shoal export", description, ExportOptions, "RUN")
    options: ExportOptions = typed.make(ExportOptions)
    source = one_run(typed, "shoal export")
    from shoal.playing.exporting import export

    made = export(source, options.output, format=options.format, trust=options.trust)
    if options.json:
        print_json(dataclasses.asdict(made))
        return OK
    for kind, tensors in (("in ", made.inputs), ("out", made.outputs)):
        for tensor in tensors:
            print(f"{kind}  {tensor['name']}  {tensor['dtype']} {tensor['shape']}")
    print(f"the same as the policy to {made.largest_difference:.0e} on recorded steps\n→ {made.folder}/{made.file}")
    return OK
