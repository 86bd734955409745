"""Making a bundle's goldens: PyTorch answers once to be kept, and once more to measure noise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.engines.goldens import (
    PHASES,
    VISION,
    GoldenCase,
    GoldenPrompt,
    ReferenceCall,
    golden_case,
    save_goldens,
)
from p2p_export.engines.row_layouts import LayoutError
from p2p_export.goldens.noise import (
    GRAPH_DTYPE,
    OTHER_DTYPE,
    decoder_golden,
    difference,
    with_vision,
)
from p2p_export.goldens.prompts import PicturePrompt, picture_prompt, random_prompts
from p2p_export.goldens.reference import Reference, computing_in, decoder_modules, vision_modules
from p2p_export.graph_bindings import read_bindings
from p2p_export.manifest import DECODER_FILE, DENSE_FILE, VISION_FILE, Golden
from p2p_export.models.checkpoint import Checkpoint
from p2p_export.models.vision import VisionInfo, vision_inputs
from p2p_export.plan import Plan
from p2p_export.proxies import ProxySet

DECODE_STEPS = 2
# A golden prompt whose cache is larger than this is left out: goldens travel with the bundle.
LARGEST_CACHE = 16 * 2**20


@dataclass(frozen=True)
class GoldenWriter:
    """Writes goldens for the graphs in `folder`; `vision` is None where there is no such graph."""

    folder: Path
    model: Any
    checkpoint: Checkpoint
    plan: Plan
    proxies: ProxySet
    precision: str
    lowering: str
    layout: str
    vision: VisionInfo | None
    trust_remote_code: bool = False

    def write(self, *, dense: bool) -> tuple[Golden, GoldenPrompt]:
        """Write the files; return their tolerances, and the prompt that is most like a real one."""
        picture = self._picture()
        prompts = random_prompts(self.model, self.checkpoint.family)
        if picture is not None and self._cache_bytes(picture.prompt) <= LARGEST_CACHE:
            prompts = [picture.prompt, *prompts]
        prompts = [prompt for prompt in prompts if self._expressible(prompt)]
        family = self.checkpoint.family
        pruned = Reference(self.model, family, self.plan, self.proxies)
        calls, again = self._answers(pruned, prompts)
        elided = (
            [i for i in self.plan.planned if self.plan.mode(i) == "proxy"]
            if self.lowering == "elided"
            else ()
        )
        self._save(DECODER_FILE, calls, elided)
        if dense:
            dense_calls, dense_again = self._answers(Reference(self.model, family), prompts)
            self._save(DENSE_FILE, dense_calls, ())
            calls, again = calls + dense_calls, again + dense_again
        source = "random" if picture is None else "processor"
        golden = decoder_golden(calls, again, precision=self.precision, source=source)
        if picture is not None and self.vision is not None:
            golden = with_vision(golden, self._write_vision(picture, self.vision))
        return golden, prompts[0] if picture is None else picture.prompt

    def _answers(
        self, reference: Reference, prompts: Sequence[GoldenPrompt]
    ) -> tuple[list[ReferenceCall], list[ReferenceCall]]:
        """Each prompt's calls in float32, and the same calls in the dtype that measures noise."""
        calls, again = [], []
        for prompt in prompts:
            found = reference.run(prompt, decode_steps=DECODE_STEPS)
            with self._other_dtype(decoder_modules(self.model, self.checkpoint.family)):
                again += reference.replay(found)
            calls += found
        return calls, again

    def _save(
        self, graph: str, calls: Sequence[ReferenceCall], elided_layers: Collection[int]
    ) -> None:
        names = frozenset(one.name for one in read_bindings(self.folder / graph).inputs)
        dtype = GRAPH_DTYPE[self.precision]
        for phase in PHASES:
            chosen = [c for c in calls if (c.cache_before[0].shape[2] > 0) == (phase == "decode")]
            cases = [
                golden_case(call, names, dtype, layout=self.layout, elided_layers=elided_layers)
                for call in chosen
            ]
            save_goldens(self.folder, graph, phase, cases)

    def _write_vision(self, picture: PicturePrompt, info: VisionInfo) -> float:
        """The picture's rows as transformers puts them into the prompt; returns their noise."""
        [output] = read_bindings(self.folder / VISION_FILE).outputs
        rows = picture.rows[None] if len(output.shape) == 3 else picture.rows
        rows = rows.astype(GRAPH_DTYPE[self.precision])
        case = GoldenCase(vision_inputs(info, picture.processed), {output.name: rows})
        save_goldens(self.folder, VISION_FILE, VISION, [case])
        with self._other_dtype(vision_modules(self.model, self.checkpoint.family)):
            again = self._picture()
        assert again is not None
        return difference(picture.rows, again.rows, self.precision)

    def _picture(self) -> PicturePrompt | None:
        return picture_prompt(
            self.model,
            self.checkpoint,
            newline=self.plan.newline,
            trust_remote_code=self.trust_remote_code,
        )

    @contextmanager
    def _other_dtype(self, modules: Sequence[Any]) -> Iterator[None]:
        with computing_in(modules, OTHER_DTYPE[self.precision]):
            yield

    def _expressible(self, prompt: GoldenPrompt) -> bool:
        """Whether the layout of the pruned graph can say which rows are visual."""
        try:
            prompt.rows(self.layout)
        except LayoutError:
            return False
        return True

    def _cache_bytes(self, prompt: GoldenPrompt) -> int:
        spec = self.checkpoint.spec
        per_token = 2 * spec.num_hidden_layers * spec.key_value_size * 4
        return int(prompt.visual_mask.size) * per_token
