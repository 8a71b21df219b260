"""Mistakes that both sides of a proof share, in readers, dequantizers and tables: the second reader must notice."""

from __future__ import annotations

from laws.mutations.rows import Planted, among

EXACTLY = "tensors"
"""Who sees a formula that is wrong where blocks hold the values exactly: they are held against the scheme's floats."""
BY = "second reader"
READERS = (
    *among("formats.readers.safetensors",
           ("every tensor one row early", "llama", BY, "(Span(file, data + line.begin, line.shape),)",
            "(Span(file, data + max(0, line.begin - 2 * (line.shape or (0,))[-1]), line.shape),)"),
           ("two tensors read from each other's place", "llama", BY,
            "        line = header.line(header.places[row])\n        return",
            "        line = header.line(header.places[row])\n"
            "        if 'layers.0.mlp.up_proj' in line.name:\n"
            "            other = next(header.line(p) for p in header.places if 'layers.1.mlp.up_proj' in "
            "header.line(p).name)\n"
            "            line = line._replace(begin=other.begin, end=other.end)\n        return"),
           ("halves of one kind taken for the other", "fp8 blocks", BY, "name.encode(): block_type(name)",
            'name.encode(): block_type({"BF16": "F16", "F16": "BF16"}.get(name, name))')),
    *among("formats.pytorch.torch_file",
           ("views that begin at their storage", "llama of torch", BY,
            "records[view.storage.key].offset + view.offset * view.type.block_bytes",
            "records[view.storage.key].offset"),
           ("views without their strides", "llama of torch", BY, "None if _is_contiguous(view) else view.strides",
            "None")),
)

DEQUANTIZERS = (
    *among("converters.prequantized.dequantized_rows",
           ("FP8: scales of blocks from right to left", "fp8 blocks", BY,
            "found = values_of(checkpoint, ref, low, high)[rows - low]",
            "found = values_of(checkpoint, ref, low, high)[rows - low][:, ::-1]"),
           ("FP8: divided by the scale", "fp8 blocks", BY,
            "values *= self.scale.over(self.checkpoint, start, stop, groups)",
            "values /= self.scale.over(self.checkpoint, start, stop, groups)"),
           ("packed integers: offset one off", "ct int4 group", BY, "values -= np.float32(1 << self.bits - 1)",
            "values -= np.float32((1 << self.bits - 1) - 1)")),
    *among("converters.prequantized.schemes.gptq",
           ("GPTQ: order of the columns ignored", "gptq 4 desc_act", BY,
            "        if self.order is None:\n            return np.arange",
            "        if True:\n            return np.arange")),
    *among("quant.codecs.packed",
           ("GPTQ: the 1 of format 1 not added", "gptq 4 desc_act", BY,
            "(zeros + 1) & ((1 << bits) - 1) if first_version else zeros", "zeros")),
    *among("converters.prequantized.schemes._integers",
           ("AWQ: columns as they lie in a word", "awq", BY, "GEMM = (0, 4, 1, 5, 2, 6, 3, 7)",
            "GEMM = (0, 1, 2, 3, 4, 5, 6, 7)"),
           ("AWQ: zeros of the first group", "awq", BY, "self.zeros(start, stop)[:, groups]",
            "self.zeros(start, stop)[:, groups * 0]"),
           ("Quark: signed nibbles from 0", "quark int4", "reading", "return (nibbles ^ 8) - 8", "return nibbles")),
    *among("converters.prequantized.schemes.bitsandbytes",
           ("bitsandbytes: neighbors exchanged", "bnb nested nf4", BY, "np.stack((packed >> 4, packed & 15), 1)",
            "np.stack((packed & 15, packed >> 4), 1)"),
           ("bitsandbytes: offset of nested scales left out", "bnb nested nf4", BY,
            "found += np.float32(nested.offset)", "found += np.float32(0)"),
           ("LLM.int8(): over 128", "bnb int8", BY, "PER_LEVEL = 7.874015718698502e-3", "PER_LEVEL = 1 / 128")),
    *among("converters.prequantized.schemes._gptq_2023",
           ("GPTQ of March 2023: product added", "gptq of March 2023", EXACTLY, "values -= products[:, groups]",
            "values += products[:, groups]")),
    *among("converters.prequantized.schemes._packed_rows",
           ("HQQ: the first rows in the lowest bits", "hqq 3, axis 0", BY,
            "stored >> (whole - bits * (number + 1)) & mask", "stored >> bits * number & mask")),
    *among("converters.prequantized.schemes.hqq",
           ("HQQ: zero point added", "hqq 3, axis 0", BY, "values -= self._numbers(self.zero, box)",
            "values += self._numbers(self.zero, box)")),
    *among("converters.prequantized.schemes.torchao",
           ("torchao: neighbors exchanged", "torchao int4", BY, "np.stack((stored << 4 >> 4, stored >> 4), -1)",
            "np.stack((stored >> 4, stored << 4 >> 4), -1)"),
           ("torchao: zero points forgotten", "torchao 4 with zeros", BY, "    if zero is not None:\n",
            "    if False:\n")),
    *among("converters.prequantized.schemes.exl2",
           ("EXL2: columns as they are stored", "exl2", BY, "[:, order].astype(np.float32)", ".astype(np.float32)"),
           ("EXL2: roots of scales from 0", "exl2", BY, ".astype(np.int16) + 1", ".astype(np.int16)")),
    *among("converters.prequantized.schemes.mlx",
           ("MLX: bias subtracted", "mlx 4", EXACTLY, "values += values_of(self.checkpoint, self.biases",
            "values -= values_of(self.checkpoint, self.biases")),
    *among("converters.prequantized.schemes.bitnet",
           ("BitNet: scale the other way round", "bitnet", EXACTLY, "out / scale if self.divides else out * scale",
            "out * scale if self.divides else out / scale")),
    *among("converters.prequantized.schemes._bitnet_online",
           ("BitNet online: the mean of rows", "bitnet, online", BY, "/ self.weight.elements", "/ self.weight.rows"),
           ("BitNet online: a scale that is not rounded", "bitnet, online", BY,
            "rounded(np.float32(1) / self.inverse(), self.weight.type.name)", "np.float32(1) / self.inverse()")),
    *among("converters.prequantized.micro_scales",
           ("NVFP4: the tensor's scale multiplies", "ct nvfp4", EXACTLY,
            "scales /= values_of(self.checkpoint, self.over, 0, 1)",
            "scales *= values_of(self.checkpoint, self.over, 0, 1)"),
           ("MXFP4: neighbors exchanged", "mxfp4 of mlx", BY, "np.stack((packed & 15, packed >> 4), -1)",
            "np.stack((packed >> 4, packed & 15), -1)"),
           ("MXFP8: exponents one off", "mlx mxfp8", BY, "np.arange(256) - 127", "np.arange(256) - 126")),
)

TABLES = (
    *among("converters.model_graph.class_defaults.text_models",
           ("defaults of a class ten times as large", "llama without a base", BY,
            "return next((self.values[place] for place in places.split(\"|\") if place in self.values), NOTHING)",
            "return next((10.0 * v if type(v := self.values[place]) is float else v for place in places.split(\"|\") "
            "if place in self.values), NOTHING)")),
    *among("converters.model_graph.tensor_roles",
           ("twelve experts in the order of their names", "mixtral of twelve", BY,
            "for e in range(1 + max(e for e, _ in places))",
            "for e in sorted(range(1 + max(e for e, _ in places)), key=str)")),
    *among("converters.architectures._gemma",
           ("Gemma's scale of scores without its root", "gemma3", BY, "float(scalar**-0.5)", "float(scalar**-1.0)")),
)

SECOND_READER: tuple[Planted, ...] = (*READERS, *DEQUANTIZERS, *TABLES)
