"""Follow llama.cpp's loading functions: which keys they ask for and which tensors they make, under which conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cpp_statements import (
    Block,
    Function,
    If,
    Lambda,
    Loop,
    ParseError,
    Simple,
    Statement,
    Tokens,
    closing,
    split,
)
from loader_source import TYPE, Source, joined
from value_types import KINDS, accepted

READERS = ("get_key", "get_key_or_arr", "get_arr", "get_arr_n")
UNFOLLOWED = ("GGML_UNUSED", "nextn_flags", "load_arch_hparams")
NEUTRAL = {"TENSOR_SKIP", "TENSOR_DUPLICATED", "TENSOR_ALLOW_RESHAPE", "TENSOR_READ_LAZY", "TENSOR_SKIP_IF_VIRTUAL"}
OPTIONAL = {"TENSOR_NOT_REQUIRED"}
NO_FLAGS = ("0", "false", "nf . trunk")
LAYERS = {"n_layer", "n_layer_all", "hparams . n_layer_all", "hparams . n_layer ( )"}
YES, NO = "yes", "no"
NEXTN, TRUNK = "nextn", "trunk"  # conditions true of NextN blocks alone, which follow the others; of all but them
UNKNOWN = ["unknown"]  # what a variable holds after branches that disagree
OPPOSITE = {YES: NO, NO: YES, NEXTN: TRUNK, TRUNK: NEXTN, "": ""}
LITERAL = re.compile(r'-? ?(?:\d[\w.]*|true|false|"[^"]*"|LLAMA_\w+|LLM_\w+)$')


def shown(conditions: Sequence[str]) -> str:
    """Conditions as a person writes them."""
    text = " and ".join(dict.fromkeys(conditions))
    text = re.sub(r" ?(\.|->|::) ?", r"\1", text)
    text = re.sub(r"(?<=\w) \((?= ?\))", "(", text)
    text = re.sub(r"(?<!not )(?<!for )(?<!and )(?<=\w) \( ", "(", text)
    return re.sub(r"(?<=[(!]) | (?=[);])", "", text)


@dataclass(frozen=True, slots=True)
class Read:
    """A request for a key. `when`: conditions that only the file decides. `target`: the variable it fills."""

    key: str
    takes: tuple[str, ...]
    refuses: frozenset[str]
    required: bool
    when: tuple[str, ...]
    default: str
    target: str


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    state: str
    when: tuple[str, ...]


class Walker:
    """One pass over the functions of one architecture."""

    def __init__(self, source: Source, symbol: str, facts: Mapping[str, str] | None = None) -> None:
        self.source, self.symbol = source, symbol
        self.facts = facts or {}
        self.reads: list[Read] = []
        self.tensors: list[Tensor] = []
        self.types: dict[str, str] = {}
        self.values: dict[str, Tokens] = {}
        self.lambdas: dict[str, Function] = {}

    def follow(self, function: Function, when: tuple[str, ...] = ()) -> None:
        self.walk(function.body, when)

    def walk(self, body: Sequence[Statement], when: tuple[str, ...]) -> str:
        """Follow the statements. Returns how they end: '' they go on, 'leaves', 'throws', or the condition under which
        they have left the function."""
        left = ""
        for item in body:
            inner = (*when, left) if left else when
            end = self.step(item, inner)
            if end in ("leaves", "throws"):
                return left if left else end
            left = left or end
        return left

    def step(self, item: Statement, when: tuple[str, ...]) -> str:
        match item:
            case Simple():
                return self.simple(item.tokens, when)
            case If():
                return self.branch(item, when)
            case Loop():
                return self.loop(item, when)
            case Block():
                return self.walk(item.body, when)
            case Lambda():
                self.lambdas[item.name] = item.function
        return ""

    def loop(self, item: Loop, when: tuple[str, ...]) -> str:
        header = joined(item.header)
        all_blocks = re.match(r"(?:u?int\d*(?:_t)?) (\w+) = 0 ; \1 < (.*) ; (?:\+\+ \1|\1 \+\+)$", header)
        if self.special_ids(item, when):
            return ""
        self.expression(item.header, when)
        if not (all_blocks and all_blocks[2] in LAYERS):
            when = (*when, f"{item.word} ( {header} )")
        end = self.walk(item.body, when)
        return end if end not in ("leaves", "throws") else ""

    def special_ids(self, item: Loop, when: tuple[str, ...]) -> bool:
        """The loop over `special_token_types`, pairs of a key and the id it sets (llama_vocab::impl::load)."""
        if joined(item.header) != "const auto & it : special_token_types":
            return False
        pairs = self.values["special_token_types"]
        for index, token in enumerate(pairs):
            if token.startswith("LLM_KV_"):
                target = pairs[index + 2]
                self.read("get_key", [[token], ["uint32_t"], ["false"]], when, f"id {target}")
        return True

    def branch(self, item: If, when: tuple[str, ...]) -> str:
        self.expression(item.condition, when, tested=True)
        known, text = self.decide(item.condition), joined(item.condition)
        if known in (YES, NO):
            return self.walk(item.then if known == YES else item.other, when)
        yes = when if known == TRUNK else (*when, text)
        no = when if known == NEXTN else (*when, f"not ( {text} )")
        start, before = (len(self.reads), len(self.tensors)), dict(self.values)
        then_end = self.walk(item.then, yes)
        middle = len(self.reads), len(self.tensors)
        after_then, self.values = self.values, before
        other_end = self.walk(item.other, when if then_end == "throws" and item.other else no)
        for name in {*self.values, *after_then}:
            if self.values.get(name) != after_then.get(name):
                self.values[name] = UNKNOWN
        if item.condition != ["try"]:
            self.merge(start, middle, yes, no, when)
        return _end(text, then_end, other_end)

    def merge(
        self,
        start: tuple[int, int],
        middle: tuple[int, int],
        yes: tuple[str, ...],
        no: tuple[str, ...],
        when: tuple[str, ...],
    ) -> None:
        """What both branches require is required."""
        both = _required(self.reads[start[0] : middle[0]], yes) & _required(self.reads[middle[0] :], no)
        for index in range(start[0], len(self.reads)):
            if self.reads[index].key in both:
                self.reads[index] = replace(self.reads[index], when=when)
        made = _made(self.tensors[start[1] : middle[1]], yes) & _made(self.tensors[middle[1] :], no)
        for index in range(start[1], len(self.tensors)):
            if self.tensors[index].name in made and self.tensors[index].state == "required":
                self.tensors[index] = replace(self.tensors[index], when=when)

    def decide(self, condition: Tokens) -> str:
        """What is known of a condition before any file is seen: YES, NO, NEXTN, TRUNK or ''."""
        text = joined(condition)
        for operator, decisive, neutral in (("||", YES, NO), ("&&", NO, YES)):
            parts = split(condition, operator)
            if len(parts) > 1:
                found = {self.decide(part) for part in parts}
                return decisive if decisive in found else neutral if found == {neutral} else ""
        while condition[0] == "(" and closing(condition, 0) == len(condition) - 1:
            condition = condition[1:-1]
        if condition[0] == "!":
            return OPPOSITE[self.decide(condition[1:])] if len(condition) == 2 else ""
        if compared := re.match(r"arch == (LLM_ARCH_\w+)$", text):
            return YES if compared[1] == self.symbol else NO
        if compared := re.match(r'(\w+) == ("[^"]*")$', text):
            known = self.facts.get(compared[1])
            return "" if known is None else YES if known == compared[2] else NO
        if text in ("hparams . vocab_only", "ml . get_arch ( ) == LLM_ARCH_CLIP"):
            return NO
        if text == "flags & TENSOR_SKIP" and joined(self.values.get("flags", [])) in NO_FLAGS:
            return NO
        if re.match(r"il? (>=|<) n_layer$", joined(condition)):
            return NEXTN if condition[1] == ">=" else TRUNK
        held = self.values.get(condition[0], condition) if len(condition) == 1 else condition
        return self.decide(held) if held != condition else ""

    def simple(self, tokens: Tokens, when: tuple[str, ...]) -> str:
        self.expression(tokens, when)
        if tokens[:1] == ["throw"]:
            return "throws"
        if tokens[:1] == ["return"]:
            return "leaves"
        self.assign(tokens, when)
        return ""

    def assign(self, tokens: Tokens, when: tuple[str, ...]) -> None:
        """Note what a variable holds; a key that filled it before has no plain default any more."""
        text = joined(tokens)
        if declared := TYPE.match(text):
            kind, name, mark, value = declared.groups()
            self.types[name] = kind
            self.values.pop(name, None)
            if mark:
                self.values[name] = (value if mark == "=" else value[:-2]).split(" ")
            return
        if filled := re.match(r"std::fill \( (hparams \. \w+) \. begin \( \) , \1 \. end \( \) , (.*) \)$", text):
            self.set(filled[1], filled[2].split(" "), when)
        elif found := re.match(r"((?:hparams \. )?\w+(?: \. \w+)?) ([-+*/|&^]?=) (.*)$", text):
            self.set(found[1], found[3].split(" ") if found[2] == "=" else UNKNOWN, when)

    def set(self, target: str, value: Tokens, when: tuple[str, ...]) -> None:
        self.values[target] = value
        for index, read in enumerate(self.reads):
            if read.target == target and read.default:
                self.reads[index] = replace(read, default="")

    def expression(self, tokens: Tokens, when: tuple[str, ...], tested: bool = False) -> None:
        """Find the requests in an expression. Those after `||`, `&&` or `?` need not happen. Where it is `tested`, what
        a variable holds without the key says nothing."""
        start = len(self.reads)
        guard = when
        for index, token in enumerate(tokens):
            if token in ("||", "&&", "?") and self.calls(tokens[index:]):
                guard = (*when, joined(tokens[:index]))
            if (index + 1 < len(tokens) and tokens[index + 1] == "(") or token == "ml":
                self.call(token, tokens, index, guard)
        if tested:
            self.reads[start:] = [replace(read, default="") for read in self.reads[start:]]

    def calls(self, tokens: Tokens) -> bool:
        return any(token in (*READERS, "create_tensor") for token in tokens)

    def call(self, name: str, tokens: Tokens, index: int, when: tuple[str, ...]) -> None:
        if name == "ml":
            self.check_ml(tokens, index)
            return
        arguments = split(tokens[index + 2 : closing(tokens, index + 1)], ",")
        if name in READERS and tokens[index - 1] == ".":
            self.read(name, arguments, when)
        elif name == "create_tensor":
            self.tensor(arguments, when)
        elif name in self.lambdas:
            self.inline(self.lambdas[name], arguments, when)
        elif (function := self.helper(name, arguments)) is not None:
            self.inline(function, arguments, when)

    def check_ml(self, tokens: Tokens, index: int) -> None:
        """The loader may only be used in ways that this walk follows."""
        after = tokens[index + 1 : index + 3]
        known = (
            *READERS,
            "get_weight",
            "get_tensor_meta",
            "llm_kv",
            "metadata",
            "load_mtp",
            "get_arch",
            "ftype_name",
            "n_bytes",
            "ftype",
        )
        if after and after[0] in (".", "->"):
            if after[1] not in known:
                raise ParseError(f"ml.{after[1]}")
            return
        back = max(i for i in range(index) if tokens[i] == "(")
        name = tokens[back - 1]
        if name not in UNFOLLOWED and self.helper(name, [["ml"]]) is None:
            raise ParseError(f"{name}(ml)")

    def helper(self, name: str, arguments: list[Tokens]) -> Function | None:
        """A function of the loader's that asks for keys or makes tensors on the caller's behalf."""
        if name.startswith("create_tensor_"):
            return self.source.function(f"llama_model_base::{name}")
        if ["ml"] not in arguments or name in UNFOLLOWED:
            return None
        for full in (name, f"llama_model_base::{name}"):
            if full in self.source.functions:
                return self.source.function(full)
        if "::load_arch_" in name:
            return self.source.method(*name.split("::"))
        raise ParseError(f"{name}(ml)")

    def inline(self, function: Function, arguments: list[Tokens], when: tuple[str, ...]) -> None:
        """Follow a helper with what the caller passes."""
        values, types, lambdas = self.values, self.types, self.lambdas
        self.values, self.types, self.lambdas = dict(values), dict(types), dict(lambdas)
        for place, (kind, name, default) in enumerate(function.parameters):
            given = arguments[place] if place < len(arguments) else default
            if name:
                self.values[name] = values.get(given[0], given) if len(given) == 1 else given
                self.types[name] = kind
        self.walk(function.body, when)
        values |= {name: value for name, value in self.values.items() if name.startswith("hparams ")}
        self.values, self.types, self.lambdas = values, types, lambdas

    def named(self, tokens: Tokens, known: Mapping[str, str]) -> str:
        """A member of an enumeration, perhaps by the name of the parameter that holds it."""
        name = joined(tokens)
        name = name if name in known else joined(self.values.get(name, tokens))
        if name not in known:
            raise ParseError(f"{name} is unknown")
        return known[name]

    def read(self, reader: str, arguments: list[Tokens], when: tuple[str, ...], target: str = "") -> None:
        name, into, *rest = arguments
        if joined(name).startswith("std::get<0>") or joined(name).startswith("std::get < 0 >"):
            return  # special_ids
        key = self.named(name, self.source.keys)
        target = target or joined(into)
        kind, initial = self.kind(joined(into))
        array = kind.startswith("std::") and "<" in kind
        words = [joined(part) for part in rest]
        if reader == "get_key_or_arr" and array:
            words = words[1:]
        if len(words) > 1 or (words and words[0] not in ("true", "false", "0", "0.0f")):
            raise ParseError(f"{reader}({key}, {words})")
        required = not words or words[0] == "true"
        takes, refuses = accepted(reader, kind, required)
        value = self.values.get(target.removeprefix("id "), initial.split(" ") if initial else [])
        self.reads.append(Read(key, takes, refuses, required, when, self.default(value, when), target))

    def default(self, value: Tokens, when: tuple[str, ...]) -> str:
        text = joined(value)
        if when or not LITERAL.match(text):
            return ""
        text = text.replace("- ", "-").replace("LLAMA_TOKEN_NULL", "-1")
        text = self.source.enums.get(text, text)
        return re.sub(r"(?<=[\d.])f$", "", text) if not text.startswith(("LLAMA_", "LLM_")) else ""

    def kind(self, target: str) -> tuple[str, str]:
        """The type of a variable, and what its declaration gives it."""
        if target in KINDS:
            return target, ""
        if target in self.types:
            return self.types[target], ""
        if target in self.source.members:
            return self.source.members[target]
        if target.startswith("normalizer_opts . "):
            return "bool", ""
        raise ParseError(f"the type of {target} is unknown")

    def tensor(self, arguments: list[Tokens], when: tuple[str, ...]) -> None:
        name, _, flags = arguments
        if len(name) == 1 and name[0] in self.values:
            name = self.values[name[0]]
        if name[:2] != ["tn", "("]:
            raise ParseError(f"create_tensor({joined(name)})")
        symbol, *rest = split(name[2:-1], ",")
        text = self.named(symbol, self.source.tensors)
        if rest and rest[0][0].startswith('"'):
            text += "." + rest[0][0].strip('"')
        state = self.flags(flags)
        self.tensors.append(Tensor(text, state, when if state != "sometimes" else (*when, joined(flags))))

    def flags(self, tokens: Tokens) -> str:
        """'required', 'optional', or 'sometimes' where the flags depend on the file."""
        while tokens[0] == "(" and closing(tokens, 0) == len(tokens) - 1:
            tokens = tokens[1:-1]
        condition, *branches = split(tokens, "?")
        if branches:
            yes, no = split(branches[0], ":")
            chosen = {YES: [yes], NO: [no], NEXTN: [no], TRUNK: [yes]}.get(self.decide(condition), [yes, no])
            found = {self.flags(part) for part in chosen}
            return found.pop() if len(found) == 1 else "sometimes"
        parts = split(tokens, "|")
        if len(parts) > 1:
            states = {self.flags(part) for part in parts}
            return next((state for state in ("optional", "sometimes") if state in states), "required")
        text = joined(tokens)
        if text in OPTIONAL:
            return "optional"
        if text in NEUTRAL or text in NO_FLAGS:
            return "required"
        held = self.values.get(text, tokens)
        return self.flags(held) if held != tokens else "sometimes"


def _required(reads: Sequence[Read], when: tuple[str, ...]) -> set[str]:
    return {read.key for read in reads if read.required and read.when == when}


def _made(tensors: Sequence[Tensor], when: tuple[str, ...]) -> set[str]:
    return {tensor.name for tensor in tensors if tensor.state == "required" and tensor.when == when}


def _end(text: str, then: str, other: str) -> str:
    """How a branch ends, given how both of its sides do (`Walker.walk`)."""
    ends = {"leaves", "throws"}
    if then in ends and other in ends:
        return "throws" if then == other == "throws" else "leaves"
    if then == "leaves":
        return f"not ( {text} )"
    if other == "leaves":
        return text
    return "" if {then, other} <= {"", "throws"} else f"past ( {text} )"
