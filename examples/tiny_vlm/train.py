"""Train one of the built-in models from scratch on a CPU.

python examples/tiny_vlm/train.py --model tiny-llava --steps 4000 --seed 1 \
    --log tiny-llava.log --checkpoint tiny-llava.pt
python examples/tiny_vlm/export.py --model tiny-llava --checkpoint tiny-llava.pt --out FOLDER

The run is a function of its arguments; killed, it continues from the last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from pathlib import Path

import torch
from architectures import NAMES, NUM_VISUAL_TOKENS, build_model, build_tokenizer
from batches import Batch, PromptLayout, pack, pixels, scene_row, training_rows
from heads import TeachingHeads
from muon import build_optimizers
from packed_attention import use_packed_attention
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from p2p_export.calibration.tiny_vqa_composition import TASKS

CELL_WEIGHT, GROUND_WEIGHT = 0.3, 0.15
PRETRAIN_STEPS, PRETRAIN_BATCH = 200, 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=NAMES, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to resume from")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenes", type=int, default=13, help="tiny-vqa images a step")
    parser.add_argument("--easy", type=int, default=3, help="easy-vqa images a step")
    parser.add_argument(
        "--order-weight", type=float, default=0.0, help="teach cells a letter's place on its sign"
    )
    parser.add_argument("--choices", type=int, default=1, help="multiple-choice questions a scene")
    parser.add_argument(
        "--letters", action="store_true", help="keep only the multiple choices about letters"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor on both learning rates")
    parser.add_argument("--float32", action="store_true", help="no bf16 autocast")
    parser.add_argument("--stop-after", type=int, help="end early, as if killed (for timing)")
    return parser.parse_args()


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm up for 100 steps, stay flat to 30 %, then fall linearly to zero."""
    return min((step + 1) / 100, 1.0, (steps - step) / (0.7 * steps))


def visual_tokens(model: PreTrainedModel, images: torch.Tensor, name: str) -> torch.Tensor:
    """[B, 64, D], as they enter the decoder."""
    features = model.model.get_image_features(**pixels(images, name), return_dict=True)
    return torch.cat(list(features.pooler_output)).view(len(images), NUM_VISUAL_TOKENS, -1)


def hidden_states(
    model: PreTrainedModel, batch: Batch, layout: PromptLayout, visual: torch.Tensor
) -> torch.Tensor:
    """The decoder's normalised last hidden states [B * S, D]."""
    decoder = model.model.language_model
    embedded = decoder.embed_tokens(batch.input_ids)
    first = len(layout.before)
    embedded = torch.cat(
        [embedded[:, :first], visual.to(embedded.dtype), embedded[:, first + NUM_VISUAL_TOKENS :]],
        dim=1,
    )
    output = decoder(
        inputs_embeds=embedded,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    )
    return output.last_hidden_state.flatten(0, 1)


class Trainer:
    """One run: model, teaching heads, optimizers, and where it stands."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        tokenizer = build_tokenizer(arguments.model)
        self.model = build_model(arguments.model, tokenizer).train()
        use_packed_attention(self.model)
        self.heads = TeachingHeads(self.model.config.text_config.hidden_size, tokenizer)
        self.layout = PromptLayout(arguments.model, tokenizer, NUM_VISUAL_TOKENS)
        self.optimizers = build_optimizers(self.model, self.heads)
        self.base_rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.step = -PRETRAIN_STEPS
        self.started = time.monotonic()
        if arguments.checkpoint.exists():
            self.restore()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.arguments.float32:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def log(self, line: str) -> None:
        with self.arguments.log.open("a") as file:
            file.write(f"{line}\n")

    def parts(self) -> list[nn.Module | torch.optim.Optimizer]:
        return [self.model, self.heads, *self.optimizers]

    def save(self) -> None:
        partial = self.arguments.checkpoint.with_suffix(".partial")
        states = [part.state_dict() for part in self.parts()]
        torch.save({"step": self.step, "states": states}, partial)
        partial.replace(self.arguments.checkpoint)

    def restore(self) -> None:
        saved = torch.load(self.arguments.checkpoint)
        for part, state in zip(self.parts(), saved["states"], strict=True):
            part.load_state_dict(state)
        self.step = saved["step"]
        self.log(f"resumed at step {self.step}")

    def update(self, loss: torch.Tensor, factor: float) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_([*self.model.parameters(), *self.heads.parameters()], 1.0)
        for optimizer, rate in zip(self.optimizers, self.base_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()

    def cell_loss(self, visual: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        embedding = self.model.model.language_model.embed_tokens.weight
        weight = self.arguments.order_weight
        return self.heads.cell_loss(visual.float(), cells, embedding, order_weight=weight)

    def pretrain_step(self) -> float:
        """The vision tower alone: what each cell holds."""
        first = 10**9 + (self.step + PRETRAIN_STEPS) * PRETRAIN_BATCH
        rows = [scene_row(first + k, (4, 9)) for k in range(PRETRAIN_BATCH)]
        batch = pack(rows, self.layout)
        with self.autocast():
            visual = visual_tokens(self.model, batch.images, self.arguments.model)
        loss = self.cell_loss(visual, batch.cells)
        self.update(loss, min((self.step + PRETRAIN_STEPS + 1) / 20, 1.0))
        return loss.item()

    def train_step(self) -> tuple[float, Counter[str], Counter[str]]:
        """One optimizer step; returns the answer loss, and right and asked per task."""
        options = self.arguments
        rows = training_rows(
            self.step, scenes=options.scenes, easy=options.easy, seed=options.seed,
            simple=self.step < 0.12 * options.steps, choices=options.choices,
            letters=options.letters,
        )  # fmt: skip
        batch = pack(rows, self.layout)
        with self.autocast():
            visual = visual_tokens(self.model, batch.images, options.model)
            hidden = hidden_states(self.model, batch, self.layout, visual)
            logits = self.model.lm_head(hidden[batch.places])
        losses = cross_entropy(logits.float(), batch.targets, reduction="none")
        answers = batch.weights == 1.0
        answer_loss = losses[answers].mean()
        loss = (losses * batch.weights).sum() / answers.sum()
        loss = loss + CELL_WEIGHT * self.cell_loss(visual[batch.has_cells], batch.cells)
        grounded = hidden[batch.ground_places].float()
        loss = loss + GROUND_WEIGHT * self.heads.ground_loss(grounded, batch.ground_cells)
        self.update(loss, options.rate * learning_rate_factor(self.step, options.steps))
        right = logits[answers].argmax(-1) == batch.targets[answers]
        tasks = [asked.question.task for row in rows for asked in row.asked]
        hits = Counter(task for task, hit in zip(tasks, right.tolist(), strict=True) if hit)
        return answer_loss.item(), hits, Counter(tasks)

    def run(self) -> None:
        losses: list[float] = []
        hits: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        while self.step < self.arguments.steps:
            if self.step < 0:
                losses.append(self.pretrain_step())
            else:
                loss, step_hits, step_asked = self.train_step()
                losses.append(loss)
                hits += step_hits
                asked += step_asked
            self.step += 1
            if self.step % 50 == 0:
                shares = " ".join(
                    f"{task} {hits[task] / asked[task]:.3f}"
                    for task in (*TASKS, "easy-vqa")
                    if asked[task]
                )
                minutes = (time.monotonic() - self.started) / 60
                mean = sum(losses) / len(losses)
                self.log(f"step {self.step} minutes {minutes:.1f} loss {mean:.4f} {shares}")
                losses, hits, asked = [], Counter(), Counter()
            if self.step % 250 == 0:
                self.save()
            if self.step == self.arguments.stop_after:
                return
        self.save()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(parse_arguments()).run()
