"""Every cap on what a file may claim. Beyond a cap, a file is hostile or broken; no known model comes near one.

Counts are also checked against the bytes that remain before anything is allocated, so these caps are a second line of
defense.
"""

MAX_DIMS = 4  # GGML_MAX_DIMS; ggml refuses more
MAX_TENSORS = 1 << 20  # of a checkpoint: Kimi-K3 has 498 000, and 990 000 with the four tensors of GPTQ a matrix
MAX_GGUF_TENSORS = 1 << 16  # of a GGUF model, its experts in one tensor: DeepSeek-V3 has 1 025
MAX_GGML_TENSORS = 1 << 14  # of a GGML-era file: LLaMA-65B has 723, Whisper 1 259
MAX_KV = 1 << 14  # metadata keys: models have 20 to 100
MAX_GGUF_HEADER = 1 << 28  # bytes before the tensors: 262 144 tokens and their merges take 20 MB
MAX_ARRAY = 1 << 26  # elements of one metadata array; the largest vocabulary known is 262 144
MAX_ARRAY_DEPTH = 4  # GGUF allows nesting, nobody goes beyond 2; huggingface.js stops at 4
MAX_NESTED = 1 << 12  # arrays within arrays, in one file: llama.cpp refuses the first
MAX_STRING = 1 << 26  # bytes of one metadata string: a tokenizer.json of 33 MB exists
MAX_KEY = 65535  # gguf-spec: at most 2^16-1 bytes
MAX_NAME = 1024  # bytes of a tensor name in any source; GGUF output keeps to 63 (ggml's 64 with NUL)
MAX_GGUF_NAME = 63  # GGML_MAX_NAME is 64 including the NUL
MAX_VOCAB = 1 << 20  # tokens, and merges; the largest known have 262 144 and 514 906 (Gemma 3)
MAX_GGML_VOCAB = 1 << 18  # tokens of a GGML-era file; BLOOM has 250 880
MAX_TOKEN_BYTES = 1 << 16  # bytes of one token; SentencePiece stops at 16 characters, added tokens are short
MAX_DIM = 1 << 40  # elements along one axis
MAX_WHOLE_ROW = 1 << 21  # elements of a row that has a scale of its own or is interleaved, and is held whole
MAX_WIDTH = 1 << 20  # n_embd, n_ff and the like in a header; 53 248 is the largest known
MAX_HEADS = 1 << 14
MAX_LAYERS = 1 << 12  # 126 in Llama-3 405B; llama.cpp stops at 512
MAX_PARTS = 64  # files of one legacy model; Meta's largest had 8
MAX_ALIGNMENT = 1 << 20  # general.alignment; everybody uses 32
MAX_JSON = 100_000_000  # safetensors' own header cap
MAX_HEADERS = 1 << 28  # bytes of the headers of a checkpoint's safetensors files: DeepSeek-V3's have 14 MB
MAX_METADATA = 1 << 23  # characters of safetensors' __metadata__: the longest are a trainer's tags
MAX_METADATA_KEYS = 1 << 16  # some writers add one a tensor
MAX_JSON_ITEMS = 1 << 22  # commas of one text: a vocabulary has 262 144, its merges three times 514 906
MAX_JSON_CONTAINERS = 5 << 18  # brackets: a merge has one, an added token one
MAX_JSON_DEPTH = 100  # levels of nesting; tokenizer.json has 8
MAX_RANK = 64  # axes of a tensor in a training checkpoint: torch stops at 64
MAX_SHARDS = 1 << 12  # files of one checkpoint; the most known are 351, and each costs a descriptor
MAX_ZIP_ENTRIES = 1 << 16  # a storage each, of the tensors of one file
MAX_ZIP_DIRECTORY = 1 << 26  # bytes of a zip's central directory: 256 an entry
MAX_PICKLE = 1 << 26  # bytes of data.pkl; about 300 a tensor
MAX_PICKLE_OPS = 5 << 19  # instructions, weighed: 56 a vector, 70 a matrix, so 37 000 tensors in one file
MAX_DCP_OPS = 24 << 20  # of .metadata, weighed: 117 a piece, so 215 000: 1 100 tensors, with Adam's, on 64 devices
MAX_PIECES = 1 << 18  # of all tensors of a checkpoint that was trained on several devices
MAX_PICKLE_INT = 1 << 60  # of a dictionary key: larger ones share a hash, and a million of those never end
MAX_STATE_DEPTH = 64  # dictionaries within dictionaries
MAX_PATCHES = 1 << 14  # of the picture on which a proof compares both sides: 96 × 96 are the most known
MAX_PIXELS = 1 << 22  # of that picture, where convolutions read it pixel by pixel: 768 × 768 are the most known
MAX_EXPANSION = 1 << 16  # elements a view may show for each that its storage holds (torch.expand)
