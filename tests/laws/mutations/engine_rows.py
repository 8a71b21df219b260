"""Mistakes in what carries tables out: the forward pass, codecs, readers, vocabularies, adapters, receipts."""

from __future__ import annotations

from laws.mutations.rows import Planted, among

FORWARD = (
    *among(
        "converters.forward.blocks.softmax_attention",
        ("window reaches one token further", "mistral", "transformers", "(ahead <= -window)", "(ahead < -window)"),
        ("caps cap at one", "gemma2", "transformers", "cap * torch.tanh(scores / cap)", "torch.tanh(scores / cap)"),
        ("keys shared by every other head", "llama", "transformers", "slice(group * share, (group + 1) * share)",
         "slice(group, heads, groups)"),
    ),
    *among(
        "converters.forward.blocks.rope",
        ("sines without their magnitude", "llama longrope", "transformers", "(angles.sin() * magnitude)",
         "angles.sin()"),
        ("halves turned as pairs", "llama", "logits", 'if style == "pairs":', 'if style != "none":'),
    ),
    *among(
        "converters.forward.blocks.routing",
        ("groups ranked by their best expert", "deepseek v3", "transformers", "used, best=best", "used, best=1"),
        ("bias of selection not heard", "deepseek v3", "transformers",
         "scores + sum(model.weights.vector(name) for name in named if model.weights.has(name))", "scores"),
        ("scale of experts not applied", "deepseek v2 groups", "transformers",
         'weights * float(sizes.get("expert_scale") or 1.0)', "weights"),
    ),
)

CODECS = (
    *among("quant.codecs.simple",
           ("Q4_0's middle off by one", "llama q4_0", "decoders", "signed -= 8", "signed -= 7"),
           ("fifth bits the other way round", "llama q5_1", "decoders", 'bitorder="little"', 'bitorder="big"'),
           ("Q5_0's middle off by one", "llama to q5_0", "decoders", "signed -= 16", "signed -= 15")),
    *among("quant.codecs.kquants",
           ("Q6_K's middle off by one", "llama to q6_k", "decoders", "2, at=4)), 32)", "2, at=4)), 31)"),
           ("Q4_K's minimum added", "llama to q4_k_m", "decoders",
            "return d * scales[..., 0, :], -dmin * scales[..., 1, :]",
            "return d * scales[..., 0, :], dmin * scales[..., 1, :]")),
    *among("quant.codecs.legacy",
           ("nibbles of April's Q4_0 exchanged", "llama q4_0 of April", "recorded",
            "even = (first & low) | (second << np.uint64(4) & high)",
            "even = (first >> np.uint64(4) & low) | (second & high)")),
)

RECEIPTS = (
    *among("formats.files.digests",
           ("digest of the first bytes of a piece alone", "llama", "receipt",
            "        self._state.update(data)\n        if ahead",
            "        self._state.update(data[:4096])\n        if ahead")),
    *among("converters.conversion_plan.steps",
           ("types of the source in the receipt", "llama to q6_k", "receipt", '"type": step.type.name',
            '"type": step.source_type.name')),
    *among("converters.proof.receipt",
           ("a key left out of the receipt", "llama", "receipt",
            '{**{key: entry.origin for key, entry in plan.metadata.items()}, **_of_shards(plan)}',
            '{key: entry.origin for key, entry in plan.metadata.items() if "eos" not in key}')),
)

ADAPTERS = (
    *among("converters.adapters.plan",
           ("alpha doubled", "adapter", "adapter", "f32(adapter.alpha)", "f32(2 * adapter.alpha)")),
)

ENGINE: tuple[Planted, ...] = (*FORWARD, *CODECS, *RECEIPTS, *ADAPTERS)
