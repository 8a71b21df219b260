"""Render a chat template over conversations by Jinja, then by llama.cpp, in one process with little memory and time.

What Jinja makes of it is written as soon as it is known, to `jinja.json`: a template that ends this process in
llama.cpp's engine has been rendered by the first.
"""

from __future__ import annotations

import json
import os

import jinja_chat
from worker_protocol import Answer, Job, answer

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

NICE = 5  # it works beside a conversion


def main(job: Job) -> Answer:
    """Return llama.cpp's build and what it rendered; where it is not wanted, nothing."""
    if resource is not None:
        os.nice(NICE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    version, _, facts = jinja_chat.main(job)
    with open("jinja.part", "w", encoding="utf-8") as file:
        json.dump({"version": version, "facts": facts}, file)
    os.replace("jinja.part", "jinja.json")
    if not job["model"]:
        return "", [], {}
    import llama_cpp_chat

    jinja_chat.cap("RLIMIT_DATA", job["memory"])
    jinja_chat.cap("RLIMIT_CPU", int(sum(os.times()[:2])) + 1 + job["seconds"])
    found: Answer = llama_cpp_chat.main(job)
    return found


if __name__ == "__main__":
    answer(main)
