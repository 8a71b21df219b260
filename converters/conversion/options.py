"""Every option of a conversion, declared once.

An option has its name in Python and in a plan's lines, its flags, its help, where a request keeps it, and where a
receipt states it. Commands, library, plan reader and receipts are derived from this table. The options of the other
verbs are declared in `service/operations/`, in the same record `Option`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, StrEnum
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.support.records import dataclass

LEVELS = ("none", "fast", "full")
MMPROJ = ("both", "only", "none")
RERANK = ("auto", "yes", "no")
EXPANSIONS, ROUNDINGS = ("f16", "f32", "q8_0"), ("stock", "search", "feedback")
"""As in `quant.types`, which a command that only helps does not load."""
FORMATS, DTYPES = ("gguf", "safetensors", "mlx", "whisper.cpp"), ("f32", "f16", "bf16")


class Heading(StrEnum):
    """The groups of options in `--help`."""

    OUTPUT = "Output"
    TYPES = "Types and mixtures"
    IMPORTANCE = "Importance matrix"
    MODEL = "Model overrides"
    VOCABULARY = "Vocabulary"
    METADATA = "Metadata"
    EDITS = "Edits of GGUF files"
    PROOF = "Proof and permissions"
    RUN = "Execution"
    OPTIONS = "Options"
    """What one command alone has."""


class Kind(Enum):
    """The type of an option's values: on a command line, in Python, and in a plan's line (JSON)."""

    FLAG = "true or false"
    TEXT = "text"
    NUMBER = "a whole number"
    SECONDS = "a number of seconds"
    DECIMAL = "a number"
    SIZE = "a size"
    """Bytes: a whole number, or a text that `support.sizes` parses."""
    FILE = "a path"
    """A file or a folder that is read; receipts state its last name only."""
    TEXT_FILE = "a path of a text, or its lines"
    """A plan's line states the lines, a command line the path."""
    LIKE_FILE = "a path of a GGUF file"
    """Its types of tensors are taken, as the text of a recipe."""
    JSON_FILE = "a path of a JSON object, or the object"
    TEXTS = "a list of texts"
    PAIRS = "an object of texts"
    """On a command line: KEY=VALUE, repeated."""
    TYPES = "pairs of an expression and a type"
    """On a command line: REGEX=TYPE, repeated."""
    TYPES_FILE = "a path of REGEX=TYPE items"
    FILES = "a list of paths"
    ADAPTERS = "a list of paths of adapters, each with :SCALE or without"
    """Receipts state their last names and scales only."""
    NUMBERS = "a list of whole numbers"
    IDS = "an object of numbers or texts"
    """On a command line: KEY=VALUE, repeated."""

    @property
    def is_list(self) -> bool:
        """Return whether the option is repeated on a command line."""
        return self in (Kind.TEXTS, Kind.PAIRS, Kind.TYPES, Kind.FILES, Kind.ADAPTERS, Kind.NUMBERS, Kind.IDS)


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: Name in Python and in plans.
        kind: Type of its values.
        commands: Commands that have it, and library functions of the same names, separated by blanks.
        heading: Its group in `--help`.
        help: What it does.
        target: The field of a `Request` ('options.…' and 'vocab.…' for fields of these); None where the command itself
            acts on it.
        flags: Flags on a command line, where they are not --name.
        default: The value where it is not given.
        metavar: What `--help` calls the value.
        choices: The possible values, or a function that lists them for completion.
        least: The smallest number allowed.
        most: The largest number allowed.
        negated: Whether the flag means the opposite of the name.
        in_plan: Whether a plan's line may state it.
        receipt: Where the options of a receipt state it ('vocab.pre'); None where it leaves no trace in the output.
        of_adapters: Whether only receipts of adapters state it.
        terminal: Whether only command lines have it.
        argument: Whether a command line has it as an argument, without a flag.
        python: What the documentation of the Python function says, where `help` fits command lines only.
        longest: The most characters of a text that the HTTP API takes.
    """

    name: str
    kind: Kind
    commands: str = ""
    heading: Heading = Heading.OPTIONS
    help: str = ""
    target: str | None = None
    flags: tuple[str, ...] = ()
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | Callable[[], list[str]] = ()
    least: int | None = None
    most: int | None = None
    negated: bool = False
    in_plan: bool = False
    receipt: str | None = None
    of_adapters: bool = False
    terminal: bool = False
    argument: bool = False
    python: str = ""
    longest: int = 1000

    @property
    def flag(self) -> str:
        """Return the flag by which messages name it."""
        return self.all_flags[0]

    @property
    def either_way(self) -> bool:
        """Return whether one flag means yes and the others no; without any, the command decides."""
        return self.kind is Kind.FLAG and self.all_flags[1:2] == (f"--no-{self.flag[2:]}",)

    @property
    def all_flags(self) -> tuple[str, ...]:
        """Return all its flags."""
        return self.flags or ("--" + self.name.replace("_", "-"),)


def types_of(outtypes: str) -> tuple[str, ...]:
    """Return the types of a value of --outtype: one, or several that are written together, separated by commas.

    Raises UsageError where one is missing or stands there twice.
    """
    types = tuple(name.strip() for name in outtypes.split(","))
    if len(types) > 1 and (not all(types) or len({name.lower() for name in types}) < len(types)):
        raise UsageError("--outtype", found=outtypes, expected="types, separated by commas, each once")
    return types


AUTO = "auto"
"""The --outtype of convert_hf_to_gguf.py that means bf16 or f16, whichever the source's weights are nearer to."""


def outtypes() -> list[str]:
    """Return the values of --outtype: 'keep' and 'auto', then the recipes in llama-quantize's order."""
    return ["keep", AUTO, *file_types()]


def file_types() -> list[str]:
    """Return the names of the types and mixtures that a whole file can have, in llama-quantize's order."""
    from ggferry.quant.recipes.mixtures import recipe_ids

    return [*map(str.lower, recipe_ids())]


def mmproj_outtypes() -> list[str]:
    """Return the values of --mmproj-outtype: 'keep', then what `file_types` lists."""
    return ["keep", *file_types()]


def witnesses() -> list[str]:
    """Return the values of --witness."""
    from ggferry.converters.proof.references.examine import CHOICES

    return list(CHOICES)


_WRITES, _READS = "convert quantize", "convert verify"
_ALL = "convert quantize verify"

OPTIONS: tuple[Option, ...] = (
    # --- output ---
    Option("out", Kind.TEXT, "convert", Heading.OUTPUT,
           "File or folder (default: beside the source); ollama://NAME:TAG: a model in Ollama's store; "
           "lmstudio://PUBLISHER/MODEL: a folder of LM Studio's; jan://NAME: one of Jan's.", "out",
           ("--outfile", "-o"), metavar="PATH"),
    Option("publish", Kind.TEXT, "convert", Heading.OUTPUT,
           "Publish what is proved on the Hugging Face Hub: hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH; a run that was "
           "interrupted goes on (docs/publish.md).", metavar="REPO", terminal=True),
    Option("create_pr", Kind.FLAG, "convert", Heading.OUTPUT,
           "With --publish: open a pull request instead.", default=False, terminal=True),
    Option("private", Kind.FLAG, "convert", Heading.OUTPUT,
           "With --publish: make a new repository private; refuse one that is public.", default=False, terminal=True),
    Option("remove_published", Kind.FLAG, "convert", Heading.OUTPUT,
           "With --publish: make, publish and remove one output after another, so that the disk holds one; receipts "
           "stay.", default=False, terminal=True),
    Option("to", Kind.TEXT, "convert plan", Heading.OUTPUT,
           "The format to write: gguf; safetensors, a folder in Hugging Face's form; mlx, a folder that mlx-lm loads; "
           "whisper.cpp, its ggml-….bin.",
           "to", default="gguf", choices=FORMATS, metavar="FORMAT", in_plan=True),
    Option("dtype", Kind.TEXT, "convert plan", Heading.OUTPUT,
           "f32, f16 or bf16 for all weights of a folder (default: plain types stay, quantized ones become f32).",
           "dtype", choices=DTYPES, metavar="TYPE", in_plan=True),
    Option("max_shard_size", Kind.SIZE, "convert plan", Heading.OUTPUT,
           "Bytes of weights in a file of a folder (default: 5G).", "max_shard_size", metavar="SIZE", least=1,
           in_plan=True),
    Option("force", Kind.FLAG, "convert quantize plan", Heading.OUTPUT,
           "Replace an existing output.",
           "force", default=False),
    Option("split_max_tensors", Kind.NUMBER, "convert", Heading.OUTPUT, "Tensors a shard; 0: one file.",
           "options.split_max_tensors", default=0, least=0, in_plan=True, receipt="split_max_tensors"),
    Option("split_max_size", Kind.SIZE, "convert", Heading.OUTPUT,
           "Bytes of tensors a shard: 4G is 4·10⁹, 4GiB is 4·2³⁰.", "options.split_max_size", metavar="SIZE",
           least=1, in_plan=True, receipt="split_max_size"),
    Option("tensor_first_split", Kind.FLAG, "convert", Heading.OUTPUT,
           "Put no tensor into the first shard, metadata alone.", "options.tensor_first_split",
           ("--no-tensor-first-split",), True, negated=True, in_plan=True, receipt="tensor_first_split"),
    Option("keep_split", Kind.FLAG, "quantize", Heading.OUTPUT, "The same shards as the source.", "options.keep_split",
           default=False, receipt="keep_split"),
    Option("vocab_only", Kind.FLAG, "convert", Heading.OUTPUT, "Write the vocabulary without the tensors.",
           "options.vocab_only", default=False, in_plan=True, receipt="vocab_only"),
    Option("big_endian", Kind.FLAG, "convert", Heading.OUTPUT, "Write for big-endian machines.", "options.big_endian",
           ("--bigendian",), False, in_plan=True, receipt="big_endian"),
    Option("alignment", Kind.NUMBER, "convert", Heading.OUTPUT,
           "Align each tensor's data to a multiple of so many bytes.", "options.alignment", default=32,
           in_plan=True, receipt="alignment"),
    # --- types ---
    Option("outtype", Kind.TEXT, "convert plan", Heading.TYPES,
           "keep; any type of llama-quantize: f16, bf16, q8_0, q4_k_m, … (`ggferry types` lists them); auto: bf16 or "
           "f16, as the source's weights are. Several, separated by commas, are written together (convert: "
           "-o 'model-{outtype}.gguf').",
           "options.outtype", ("--outtype", "--ladder"), "keep", choices=outtypes, in_plan=True, receipt="outtype",
           metavar="TYPE[,TYPE…]"),
    Option("mmproj", Kind.TEXT, "convert plan", Heading.OUTPUT,
           "For multimodal models: both files, only the encoder (mmproj-….gguf), or none of it.",
           "mmproj", default="both", choices=MMPROJ, in_plan=True, metavar="WHICH"),
    Option("mmproj_out", Kind.TEXT, "convert", Heading.OUTPUT,
           "The mmproj file (default: the output's name, after mmproj-).", "mmproj_out", ("--mmproj-outfile",),
           metavar="FILE"),
    Option("mmproj_outtype", Kind.TEXT, "convert plan", Heading.TYPES,
           "The type of the mmproj file (default: as --outtype if that is keep, f32, f16 or bf16, else f16).",
           "mmproj_outtype", choices=mmproj_outtypes, in_plan=True, metavar="TYPE"),
    Option("expand", Kind.TEXT, "convert plan", Heading.TYPES,
           "f16, f32 or q8_0: for blocks GGUF has no counterpart of (Q4_2, Q4_3, QK_K=64).", "options.expand",
           default="f16", choices=EXPANSIONS, in_plan=True, receipt="expand", metavar="TYPE"),
    Option("dequantize", Kind.FLAG, "convert plan", Heading.TYPES,
           "Make plain numbers of matrices that are quantized already, where 'keep' would carry their levels and "
           "scales as GGUF's blocks.", "options.dequantize", default=False, in_plan=True, receipt="dequantize"),
    Option("recipe", Kind.TEXT_FILE, _WRITES, Heading.TYPES,
           "A recipe file (docs/recipes.md) instead of a name.", "options.recipe_text", in_plan=True,
           receipt="recipe_text", metavar="FILE"),
    Option("like", Kind.LIKE_FILE, _WRITES, Heading.TYPES,
           "Give every tensor the type that it has in this GGUF file.", "options.recipe_text", metavar="FILE"),
    Option("target_size", Kind.SIZE, "convert quantize", Heading.TYPES,
           "Choose the types with which the file has at most this size, and loses least: 4GiB is 4·2³⁰ bytes.",
           "target_size", metavar="SIZE", least=1, in_plan=True),
    Option("target_bpw", Kind.DECIMAL, "convert quantize", Heading.TYPES,
           "The same for so many bits a weight, over all tensors.", "target_bpw", metavar="BPW", least=0, in_plan=True),
    Option("among", Kind.TEXT, "convert quantize", Heading.TYPES,
           "The types that a size chooses among, separated by commas (default: q2_k to q6_k, iq4_xs and q8_0; with an "
           "importance matrix the other iq types too).", "among", metavar="TYPE,TYPE", in_plan=True),
    Option("recipe_out", Kind.TEXT, "convert quantize", Heading.TYPES,
           "Write the recipe that a size chose to this file, in a dry run too.", "recipe_out", metavar="FILE"),
    Option("measurements", Kind.TEXT, "convert quantize", Heading.TYPES,
           "Keep what a size measures in this file, and measure nothing that it holds already: for another size, and "
           "for the run after an interruption.", "measurements", metavar="FILE"),
    Option("pure", Kind.FLAG, _WRITES, Heading.TYPES, "Give all tensors one type, no mixture.", "options.pure",
           default=False, in_plan=True, receipt="pure"),
    Option("output_tensor_type", Kind.TEXT, _WRITES, Heading.TYPES, "The type of output.weight.",
           "options.output_tensor_type", in_plan=True, receipt="output_tensor_type", metavar="TYPE"),
    Option("token_embedding_type", Kind.TEXT, _WRITES, Heading.TYPES, "The type of token_embd.weight.",
           "options.token_embedding_type", in_plan=True, receipt="token_embedding_type", metavar="TYPE"),
    Option("tensor_types", Kind.TYPES, _WRITES, Heading.TYPES,
           "Give tensors whose name matches a type; the first match decides; repeatable.", "options.tensor_types",
           ("--tensor-type",), metavar="REGEX=TYPE", in_plan=True, receipt="tensor_types"),
    Option("tensor_type_file", Kind.TYPES_FILE, _WRITES, Heading.TYPES,
           "A file of REGEX=TYPE items, as of --tensor-type.", "options.tensor_types", metavar="FILE"),
    Option("leave_output_tensor", Kind.FLAG, _WRITES, Heading.TYPES, "Do not quantize output.weight.",
           "options.leave_output_tensor", default=False, in_plan=True, receipt="leave_output_tensor"),
    # --- model ---
    Option("arch", Kind.TEXT, "convert verify open_model", Heading.MODEL,
           "The architecture of a GGML-era file, where its bytes fit several.", "arch", metavar="NAME", in_plan=True,
           receipt="arch"),
    Option("mistral_format", Kind.FLAG, _READS, Heading.MODEL,
           "Take a folder's consolidated*.safetensors and params.json, though it has others.", "mistral_format",
           default=False, in_plan=True, receipt="mistral_format"),
    Option("config", Kind.FILE, "convert verify open_model", Heading.MODEL,
           "The config.json of a training checkpoint that has none, with the tokenizer beside it; or one that says "
           "what a GGML-era file does not hold.", "config", ("--hf-config",), metavar="DIR",
           in_plan=True, receipt="config"),
    Option("hparams", Kind.PAIRS, "convert verify open_model", Heading.MODEL,
           "Override a GGUF key (without architecture prefix): attention.head_count=4; repeatable.", "hparams",
           ("--hparam",),
           metavar="KEY=VALUE", in_plan=True, receipt="hparams"),
    Option("mtp", Kind.FLAG, _READS, Heading.MODEL,
           "Include multi-token-prediction (MTP) layers, or leave them out (default: included where the checkpoint has "
           "them and GGUF a place for them).", "mtp", ("--mtp", "--no-mtp", "--no-nextn"), in_plan=True, receipt="mtp"),
    Option("mtp_only", Kind.FLAG, _READS, Heading.MODEL,
           "Write the MTP layers alone, with embedding, last norm and output: a draft beside a file without them.",
           "mtp_only", default=False, in_plan=True, receipt="mtp_only"),
    Option("fuse_qkv", Kind.FLAG, _READS, Heading.MODEL,
           "Join the matrices of queries, keys and values to one, attn_qkv, and their biases.", "fuse_qkv",
           default=False, in_plan=True, receipt="fuse_qkv"),
    Option("rerank", Kind.TEXT, "convert verify open_model", Heading.MODEL,
           "Of a causal model's output matrix, keep the rows of 'yes' and 'no' as a classifier: yes, no, or auto, as "
           "its model card, modules or name say.", "rerank", default="auto", choices=RERANK, in_plan=True,
           receipt="rerank", metavar="WHICH"),
    Option("target_model", Kind.FILE, "convert verify open_model", Heading.MODEL,
           "Target model of a speculative draft: its folder, for tokenizer and config.json.", "target",
           ("--target-model", "--target-model-dir"), metavar="DIR", in_plan=True, receipt="target_model"),
    Option("base", Kind.FILE, _READS, Heading.MODEL, "The base model of an adapter, or its config.json alone.", "base",
           metavar="DIR", in_plan=True, receipt="base", of_adapters=True),
    Option("lora", Kind.ADAPTERS, _READS, Heading.MODEL,
           "Merge a LoRA adapter (PEFT's or MLX's) into the model, at :SCALE of its strength; repeatable, in this "
           "order.", "lora", metavar="PATH[:SCALE]", in_plan=True, receipt="lora"),
    Option("ggla_permute", Kind.FLAG, _READS, Heading.MODEL,
           "Permute the Q and K rows of a ggla adapter to the order it was trained in.", "ggla_permute",
           default=False, in_plan=True, receipt="ggla_permute", of_adapters=True),
    # --- vocabulary ---
    Option("tokenizer_model", Kind.FILE, "convert verify open_model", Heading.VOCABULARY,
           "The original tokenizer.model; validated, takes precedence.", "vocab.model", metavar="FILE", in_plan=True,
           receipt="vocab.model"),
    Option("tokenizer", Kind.FILE, _READS, Heading.VOCABULARY,
           "The tokenizer that a GGML-era file lacks, a folder or a file.", "vocab.source", metavar="DIR", in_plan=True,
           receipt="vocab.source"),
    Option("pre", Kind.TEXT, "convert verify open_model", Heading.VOCABULARY,
           "The pre-tokenizer's name, where it cannot be derived.", "vocab.pre", in_plan=True, receipt="vocab.pre",
           metavar="NAME"),
    Option("huggingface_json", Kind.FLAG, _READS, Heading.VOCABULARY,
           "Carry tokenizer.json along as tokenizer.huggingface.json.", "vocab.keep_json", default=False,
           in_plan=True, receipt="vocab.keep_json"),
    Option("trim_vocab", Kind.FLAG, _READS, Heading.VOCABULARY, "Drop pieces that have no embedding row.",
           "vocab.trim", default=False, in_plan=True, receipt="vocab.trim"),
    Option("no_vocab", Kind.FLAG, _READS, Heading.VOCABULARY, "Write the tensors without a vocabulary.", "vocab.none",
           default=False, in_plan=True, receipt="vocab.none"),
    # --- metadata ---
    Option("model_name", Kind.TEXT, _READS, Heading.METADATA,
           "The model's name (general.name), where the source's is not to be taken.", "model_name", in_plan=True,
           receipt="model_name", metavar="NAME"),
    Option("metadata", Kind.JSON_FILE, _READS, Heading.METADATA,
           "Values of general.* keys, a JSON file; they win over what the source says.", "metadata",
           in_plan=True, receipt="metadata", metavar="FILE"),
    # --- edits ---
    Option("override_keys", Kind.TEXTS, "quantize verify", Heading.EDITS,
           "Replace a key of the source; TYPE is int, float, bool or str; repeatable.", "override_keys",
           ("--override-kv",), metavar="KEY=TYPE:VALUE", receipt="override_keys"),
    Option("prune_layers", Kind.TEXT, "quantize verify", Heading.EDITS, "Drop these blocks.", "prune", metavar="L,L",
           receipt="prune"),
    Option("prune_experts", Kind.TEXT, "quantize verify", Heading.EDITS,
           "Drop experts of every block: the N least used or N% of them by --imatrix, those never used, or these.",
           "prune_experts", metavar="N|N%|unused|B:E,E;…", receipt="prune_experts"),
    # --- importance matrix ---
    Option("imatrix", Kind.FILE, _ALL, Heading.IMPORTANCE, "Importance matrix, GGUF or .dat.", "imatrix",
           metavar="FILE", in_plan=True, receipt="imatrix"),
    Option("include_weights", Kind.TEXTS, _ALL, Heading.IMPORTANCE, "Use only these of its entries; repeatable.",
           "include_weights", in_plan=True, receipt="include_weights", metavar="NAME"),
    Option("exclude_weights", Kind.TEXTS, _ALL, Heading.IMPORTANCE, "Use all but these of its entries; repeatable.",
           "exclude_weights", in_plan=True, receipt="exclude_weights", metavar="NAME"),
    Option("rounding", Kind.TEXT, _ALL, Heading.IMPORTANCE,
           "stock: the bytes of llama-quantize; search: better scales, and later columns correct the errors of earlier "
           "ones, by the importance matrix; feedback: by --calibration. Types and sizes stay (docs/quality.md).",
           "options.rounding", default="stock", choices=ROUNDINGS, in_plan=True, receipt="rounding", metavar="HOW"),
    Option("calibration", Kind.FILE, "convert quantize", Heading.IMPORTANCE,
           "A text that the model reads: --rounding feedback measures the inputs of its matrices there, and "
           "--target-size how much each type changes its predictions.",
           "calibration", metavar="FILE", in_plan=True),
    # --- proof ---
    Option("verify", Kind.TEXT, "convert quantize plan", Heading.PROOF,
           "full: with forward passes; fast: without; none.", "level", default="full", choices=LEVELS, in_plan=True,
           receipt="verify", metavar="LEVEL"),
    Option("level", Kind.TEXT, "verify", Heading.PROOF, "full or fast (no forward passes).", "level", default="full",
           choices=LEVELS[1:], metavar="LEVEL"),
    Option("witness", Kind.TEXTS, "convert quantize verify plan", Heading.PROOF,
           "Programs whose logits are compared: auto, transformers, llama.cpp, ctransformers; none.", "witness",
           default=(), metavar="NAME", choices=witnesses, in_plan=True, receipt="witness"),
    Option("receipt", Kind.FILE, "verify", Heading.PROOF,
           "Of a file alone: hold its blocks against the digests in this receipt (default: the one beside it).",
           metavar="FILE", terminal=True),
    Option("sample", Kind.TEXT, "verify", Heading.PROOF,
           "Of a file alone: read only so many of its blocks, drawn at random.", metavar="N|N%", terminal=True),
    Option("signed", Kind.FILE, "verify", Heading.PROOF,
           "Of a file alone: check its signature with this public key (PEM); with --receipt or --sample that of the "
           "receipt.", metavar="KEY", terminal=True),
    Option("allow_keys", Kind.TEXTS, "verify", Heading.PROOF, "Let these keys differ; repeatable.", metavar="GLOB"),
    Option("allow_quantization_error", Kind.FLAG, _ALL + " plan", Heading.PROOF,
           "Accept tensors that lie further from the source than quantizing them explains.",
           "allow_quantization_error", default=False, in_plan=True, receipt="allow_quantization_error"),
    Option("text", Kind.TEXT_FILE, "convert verify", Heading.PROOF,
           "Extra text for the tokenizer check, line by line.", "text", metavar="FILE", in_plan=True),
    Option("allow_requantize", Kind.FLAG, "convert quantize plan", Heading.PROOF,
           "Quantize what is quantized already.", "options.allow_requantize", default=False, in_plan=True,
           receipt="allow_requantize"),
    Option("allow_nonfinite", Kind.FLAG, _WRITES, Heading.PROOF,
           "Copy NaN and infinite weights, and say so; no type encodes them.", "options.allow_nonfinite",
           default=False, in_plan=True, receipt="allow_nonfinite"),
    # --- the run ---
    Option("dry_run", Kind.FLAG, _WRITES, Heading.RUN, "Print the plan, write nothing.",
           default=False, terminal=True),
    Option("jobs", Kind.NUMBER, _READS, Heading.RUN, "Worker threads (default: one a core).", "jobs",
           ("--jobs", "-j"), least=1, most=256),
    Option("device", Kind.TEXT, "convert quantize verify open_model plan", Heading.RUN,
           "Where forward passes are computed: cpu, cuda, cuda:N; auto takes a GPU if there is one.", "device",
           default="cpu", metavar="DEVICE", in_plan=True),
    Option("cache", Kind.SIZE, _ALL, Heading.RUN,
           "Disk cache for remote sources (default: 64GiB).",
           metavar="SIZE", least=0, terminal=True),
    Option("follow_redirects", Kind.FLAG, _ALL,
           Heading.RUN,
           "Follow redirects to other hosts.", default=False, terminal=True),
    Option("as_json", Kind.FLAG,
           _ALL + " plan",
           Heading.RUN,
           "One JSON object on stdout.", flags=("--json",), default=False, terminal=True),
)

_BY_NAME = {option.name: option for option in OPTIONS}
PLAN_NAMES = tuple(option.name for option in OPTIONS if option.in_plan)
"""Names of the options that a plan's line may state."""
PLAN_FILES = tuple(option.name for option in OPTIONS if option.in_plan and option.kind is Kind.FILE)
"""Those of them that name a file."""
SIZED = ("target_size", "target_bpw")
"""Those of them by which types are chosen when the weights are read."""


def is_sized(options: Mapping[str, Any]) -> bool:
    """Return whether options name a size, which headers alone choose no types for."""
    return any(options.get(name) is not None for name in SIZED)


def option(name: str) -> Option:
    """Return the option of that name. Raises KeyError."""
    return _BY_NAME[name]


def options_of(command: str) -> Iterator[Option]:
    """Yield the options of a command or a function of the library, in the order of their headings."""
    order = list(Heading)
    yield from sorted(
        (each for each in OPTIONS if command in each.commands.split()), key=lambda each: order.index(each.heading)
    )
