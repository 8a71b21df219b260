"""Compute what a Hugging Face model says of a few tokens with transformers: float32, its own classes only.

The weights keep the type they are stored in, mapped where their container allows it. Each block's become float32 while
it computes (`streamed`), so a model needs little more memory than its embeddings.
"""

from __future__ import annotations

import glob
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import transformers
from safetensors import safe_open
from torch import nn
from worker_protocol import Answer, CannotRun, Job, answer

WINDOWS = ("sliding_window", "window_size")
"""Names that configurations give to the window of attention."""
UNUSED = ("pooler.", "vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "audio_tower.")
"""Parts of the names of weights that do not affect what the model says of a text."""


def main(job: Job) -> Answer:
    """Return the version, the rows of every prompt, and context and window of attention as transformers reads them."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(job["threads"])
    config = transformers.AutoConfig.from_pretrained("model", trust_remote_code=False, local_files_only=True)
    text = config.get_text_config()
    facts = {"context": getattr(text, "max_position_embeddings", None), "window": narrowed(text, job["window"])}
    model = loaded(config, job)
    with torch.inference_mode():
        rows = [rows_of(model, job, prompt) for prompt in job["prompts"]]
    return transformers.__version__, rows, facts


def narrowed(config: Any, window: int) -> int | None:
    """Return the model's window, and put `window` in its place.

    The result is 0 for a window that is switched off, None where the configuration has no such field. A `window` of 0
    changes nothing.
    """
    for name in WINDOWS:
        found = getattr(config, name, None)
        if isinstance(found, int) and found > 0:
            if window:
                setattr(config, name, window)
            return found
    return 0 if any(hasattr(config, name) for name in WINDOWS) else None


def loaded(config: Any, job: Job) -> Any:
    """Load the model, every weight from its files. Raises Silent where transformers would invent some."""
    kind, dtype = class_of(config, job["kind"]), getattr(torch, job["dtype"])
    options = {"config": config, "trust_remote_code": False, "local_files_only": True, "output_loading_info": True}
    model, info = kind.from_pretrained("model", dtype=dtype, attn_implementation=job["attention"], **options)
    missing = [name for name in info["missing_keys"] if not any(part in name for part in UNUSED)]
    for names, what in ((missing, "finds no"), ([item[0] for item in info["mismatched_keys"]], "expects another")):
        if names:
            raise CannotRun(f"it {what} {sorted(names)[0]}")
    restore_padding(model.eval())
    if dtype != torch.float32:
        wide_buffers(model, kind, config, job["attention"])
        streamed(model)
    return model


def restore_padding(model: Any) -> None:
    """Give the padding token the row of the embedding that the files hold.

    Some classes set it to zero after they have read it (Youtu in 5.23), and a tied output has that row, too.
    """
    for path in glob.glob("model/*.safetensors"):
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            for name, module in model.named_modules():
                padding = getattr(module, "padding_idx", None)
                if isinstance(module, nn.Embedding) and padding is not None and f"{name}.weight" in names:
                    module.weight.data[padding] = file.get_slice(f"{name}.weight")[padding : padding + 1][0]


def class_of(config: Any, kind: str) -> Any:
    """Return the class that config.json names, if transformers has it; else its choice for such a configuration."""
    named: Any = getattr(transformers, (config.architectures or [""])[0] or "-", None)
    own = inspect.isclass(named) and issubclass(named, transformers.PreTrainedModel)
    if own and (kind != "states" or named.__name__.endswith("EncoderModel")):
        return named
    return {"states": transformers.AutoModel}.get(kind, transformers.AutoModelForCausalLM)


def rows_of(model: Any, job: Job, prompt: Job) -> Any:
    """Return the wanted rows of one prompt, float32; none where it has positions and the class takes none."""
    if prompt["positions"] is not None and "position_ids" not in inspect.signature(model.forward).parameters:
        return numpy.zeros((0, 0), numpy.float32)
    tokens = torch.tensor([prompt["tokens"]])
    if job["kind"] == "seq2seq":
        start = model.config.decoder_start_token_id
        given = torch.tensor([[start, *prompt["tokens"][:-1]]])
        found = model(input_ids=tokens, decoder_input_ids=given)
    elif job["kind"] == "speech":
        found = model(input_features=torch.from_numpy(numpy.load("mel.npy"))[None], decoder_input_ids=tokens)
    else:
        found = model(input_ids=tokens, **options_of(model, prompt))
    if job["kind"] == "scores":
        return found.logits.float().numpy()
    rows = found.last_hidden_state if job["kind"] == "states" else found.logits
    return rows[0][prompt["rows"]].float().numpy()


def options_of(model: Any, prompt: Job) -> Job:
    """Return the arguments besides the tokens."""
    known = inspect.signature(model.forward).parameters
    options: Job = {"use_cache": False} if "use_cache" in known else {}
    if prompt["positions"] is not None:
        options["position_ids"] = torch.tensor([prompt["positions"]])
    return options


def blocks(model: Any) -> list[Any]:
    """Return the blocks of all stacks: the members of the outermost lists of modules."""
    found: list[Any] = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else blocks(child)
    return found


def streamed(model: Any) -> None:
    """Make parameters float32: those outside of blocks for good, a block's while it computes."""
    parts = blocks(model)
    inside = {id(parameter) for part in parts for parameter in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in inside:
            parameter.data = parameter.data.float()
    for part in parts:
        kept: dict[Any, Any] = {}

        def widen(module: Any, _: Any, kept: dict[Any, Any] = kept) -> None:
            kept.update({parameter: parameter.data for parameter in module.parameters()})
            for parameter in kept:
                parameter.data = parameter.data.float()

        def restore(module: Any, _: Any, out: Any, kept: dict[Any, Any] = kept) -> None:
            for parameter, data in kept.items():
                parameter.data = data
            kept.clear()

        part.register_forward_pre_hook(widen)
        part.register_forward_hook(restore)


def wide_buffers(model: Any, kind: Any, config: Any, attention: str) -> None:
    """Take what follows from the configuration from a twin of the model in float32.

    These are rotary frequencies and scales of embeddings; in the model itself they are rounded to the type of its
    weights.
    """
    with parameters_without_values():
        twin = kind._from_config(config, dtype=torch.float32, attn_implementation=attention)
    modules = dict(model.named_modules())
    for name, module in twin.named_modules():
        for buffer in module._non_persistent_buffers_set:
            if module._buffers.get(buffer) is not None and name in modules:
                modules[name]._buffers[buffer] = module._buffers[buffer]


@contextmanager
def parameters_without_values() -> Iterator[None]:
    """Make modules, within this context, with parameters that take no memory, and with real buffers."""
    register = nn.Module.register_parameter

    def without_value(module: Any, name: str, value: Any) -> None:
        register(module, name, value)
        if value is not None:
            module._parameters[name] = nn.Parameter(value.to("meta"), requires_grad=False)

    setattr(nn.Module, "register_parameter", without_value)  # noqa: B010  mypy holds a method's type fast
    try:
        yield
    finally:
        setattr(nn.Module, "register_parameter", register)  # noqa: B010


if __name__ == "__main__":
    answer(main)
