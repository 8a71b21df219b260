"""What other programs do for a proof while the output is written: they read the source and render its template."""

from __future__ import annotations

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.references.conversations import declared_template, rendering_of, template_of
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.second_reader.check import Reading, SecondReading
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint


class Beside:
    """Work of other programs that goes on in the background."""

    def __init__(
        self, checkpoint: Checkpoint, graph: ModelGraph, tokenizer: Tokenizer | None, *, idle: bool, vocab_only: bool
    ) -> None:
        """Begin.

        Args:
            checkpoint: The source as its reader returned it.
            graph: What was understood of it.
            tokenizer: Its vocabulary.
            idle: Whether to do nothing, because nothing is proved.
            vocab_only: Whether tensors are not wanted.
        """
        self._idle = idle
        self._reading = Reading(checkpoint, graph, idle=idle or vocab_only)
        self._rendering = None if idle else rendering_of(template_of(tokenizer) if tokenizer else None)

    def reading(self) -> SecondReading:
        """Wait for the second reading. Raises VerificationError where a library reads something else."""
        return self._reading.check()

    def conversations(self, output: Checkpoint) -> tuple[CrossCheck, ...]:
        """Wait for what the programs make of the output's chat template."""
        given = None if self._idle else declared_template(output.metadata)
        rendering, self._rendering = self._rendering, None
        if rendering is not None and rendering.of != given:
            rendering.close()
            rendering = None
        if given is not None and rendering is None:
            rendering = rendering_of(given)
        return rendering.result().testimonies if rendering else ()

    def close(self) -> None:
        """Give up waiting."""
        self._reading.close()
        if self._rendering is not None:
            self._rendering.close()
