"""GGUF files of LoRA adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.adapters.plan import AdapterPlan, plan_adapter
from ggferry.converters.adapters.prove import prove_adapter
from ggferry.converters.conversion.kinds.gguf import GgufKind, plan_in
from ggferry.converters.conversion.kinds.kind import PlannedOutput
from ggferry.converters.conversion.request import OutputSpec, Request
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.references.beside import Beside
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError
from ggferry.support.progress import Phase, Stage


class AdapterKind(GgufKind):
    """The GGUF file of an adapter: pairs of small matrices, whose products are compared instead of logits."""

    name = "adapter"
    of_adapters = True

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Plan the only output that an adapter has. Raises UsageError where several types are asked for."""
        if specs[1:]:
            hint = "give one --outtype, or the adapter a run of its own"
            raise UsageError("an adapter is written in one type at a time", path=request.source, hint=hint)
        return [self._planned(one, adapter_plan(one, checkpoint), None) for one in map(request.of_output, specs)]

    def prove(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], stage: Stage, beside: Beside | None
    ) -> list[Proof]:
        """Compare every pair, and its product with fixed vectors, with the source."""
        (output,), (again,) = outputs, opened
        plan, request = plan_in(output), output.request
        assert isinstance(plan, AdapterPlan)
        with stage(Phase.VERIFYING, plan.bytes_written) as progress:
            proof = prove_adapter(plan.adapter, again, level=request.level, jobs=request.jobs, progress=progress)
        return [replace(proof, second_reader=beside.reading()) if beside else proof]


def adapter_plan(request: Request, checkpoint: Checkpoint) -> AdapterPlan:
    """Return the plan of an adapter's file. Raises one of `formats.errors`."""
    return plan_adapter(
        checkpoint,
        request.options,
        base=request.base,
        permute=request.ggla_permute,
        hparams=request.hparams,
        model_name=request.model_name,
        overrides=request.metadata,
    )
