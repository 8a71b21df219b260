"""Compute what a GGML-era file says of a few tokens with ctransformers 0.2, which unites the programs of 2023.

The tokens are evaluated one after the other.
"""

from __future__ import annotations

from importlib import metadata

import numpy as np
from ctransformers.llm import LLM, Config
from worker_protocol import Answer, CannotRun, Job, answer


def main(job: Job) -> Answer:
    """Return the version, the rows of every prompt, and no facts."""
    longest = max(len(prompt["tokens"]) for prompt in job["prompts"])
    config = Config(context_length=longest + 8, threads=job["threads"], batch_size=1, gpu_layers=0, mmap=True)
    try:
        model = LLM(job["model"], job["kind"], config=config)
    except RuntimeError:
        raise CannotRun("it does not load the file") from None
    rows = []
    for prompt in job["prompts"]:
        model.reset()
        found = []
        for token in prompt["tokens"]:
            model.eval([token])
            found.append(np.array(model.logits, np.float32))
        rows.append(np.stack(found)[prompt["rows"]])
    return metadata.version("ctransformers"), rows, {}


if __name__ == "__main__":
    answer(main)
