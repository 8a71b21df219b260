"""Render a chat template over conversations with Jinja, as transformers sets it up: sandboxed, little memory and time.

Source of the setup: transformers 5.23, utils/chat_template_utils.py (`_cached_compile_jinja_template`).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from worker_protocol import Answer, CannotRun, Job, answer

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

MEMORY = 1 << 30
LONGEST = 1 << 20  # characters of one conversation


class Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which marks what the assistant said and changes no text."""

    tags = {"generation"}  # noqa: RUF012  Jinja reads it from the class

    def parse(self, parser: Any) -> Any:
        """Return what stands between the tag and its end."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON that escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    """Refuse a conversation, for templates."""
    raise jinja2.TemplateError(message)


def main(job: Job) -> Answer:
    """Return Jinja's version, no rows, and the text of every conversation, or why there is none."""
    for what, limit in (("RLIMIT_CPU", job["seconds"]), ("RLIMIT_DATA", MEMORY)):
        cap(what, limit)
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        template = made.from_string(job["template"])
    except jinja2.TemplateSyntaxError as error:
        raise CannotRun(f"line {error.lineno} is no Jinja: {error.message}") from None
    given, declared = job["given"], {}
    for variable, value in job.get("stated", {}).items():
        more = {variable: datetime.now().strftime("%d %b %Y") if value == "today" else value}
        with_it = {name: {**one, "more": {**more, **one.get("more", {})}} for name, one in given.items()}
        declared[variable] = {name: text_of(template, job, one) for name, one in with_it.items()}
    plain = {name: text_of(template, job, one) for name, one in given.items()}
    return jinja2.__version__, [], {"rendered": plain, "stated": declared}


def cap(name: str, limit: int) -> None:
    """Let this process have no more of a resource, where the system has such limits."""
    if resource is None:
        return
    what = getattr(resource, name)
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def text_of(template: Any, job: Job, given: Job) -> dict[str, str]:
    """Return the text of a conversation, or why the template has none for it."""
    try:
        found = template.render(
            messages=given["messages"],
            tools=given.get("tools"),
            documents=None,
            add_generation_prompt=job.get("prompting", True),
            bos_token=job["bos"],
            eos_token=job["eos"],
            **given.get("more", {}),
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"text": found} if len(found) <= LONGEST else {"error": "a text without end"}


if __name__ == "__main__":
    answer(main)
