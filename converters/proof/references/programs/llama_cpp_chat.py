"""Render a chat template over conversations, and encode texts, with llama.cpp on a GGUF file, by PyPI's xllamacpp."""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request
from importlib import metadata

import xllamacpp
from worker_protocol import Answer, CannotRun, Job, Refused, answer, reason


def main(job: Job) -> Answer:
    """Return the build, no rows, and the text of every conversation, or why there is none."""
    params, key = xllamacpp.CommonParams(), secrets.token_hex(16)
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = job["model"], 256, 1, 0
    params.warmup, params.verbosity, params.fit_params, params.no_extra_bufts = False, 1, False, True
    params.use_jinja, params.api_keys = True, [key]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if job.get("template") is not None:
        params.chat_template = job["template"]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        if why := template_error():
            raise CannotRun(f"its server does not start with this chat template: {why}") from None
        raise Refused(f"it does not load the file{reason()}") from None
    answers = {name: one(server.listening_address, key, given, job) for name, given in job["given"].items()}
    texts = {"content": "", "add_special": False, "parse_special": False}
    ids = {
        name: posted(server.listening_address, "tokenize", key, {**texts, "content": text})["tokens"]
        for name, text in job.get("texts", {}).items()
    }
    return "b" + metadata.version("xllamacpp").rpartition(".")[2], [], {"rendered": answers, "ids": ids}


def template_error() -> str:
    """Return what llama.cpp printed of a template that it does not take; '' where it printed nothing of one."""
    with open("said.txt", encoding="utf-8", errors="replace") as file:
        _, _, words = file.read().partition("chat template parsing error: ")
    named = re.search(r"^(?:Error|error): (.*)", words, re.MULTILINE)
    return (named[1] if named else words.split("\n")[0])[:200]


def one(address: str, key: str, given: Job, job: Job) -> dict[str, str]:
    """Return the text of a conversation, or why there is none.

    The texts that begin and end a document are the job's, whatever the loaded file says.
    """
    body: Job = {"messages": given["messages"], "add_generation_prompt": True}
    body |= {"tools": given["tools"]} if given.get("tools") else {}
    body["chat_template_kwargs"] = {"bos_token": job["bos"], "eos_token": job["eos"], **given.get("more", {})}
    try:
        return {"text": posted(address, "apply-template", key, body)["prompt"]}
    except urllib.error.HTTPError as error:
        try:
            words = str(json.loads(error.read())["error"]["message"])
        except (ValueError, KeyError, TypeError):
            words = str(error)
        return {"error": words.strip()[:600]}


def posted(address: str, route: str, key: str, body: Job) -> Job:
    """Return what the server answers to a request."""
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{address}/{route}", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: Job = json.loads(reply.read())
    return found


if __name__ == "__main__":
    answer(main)
