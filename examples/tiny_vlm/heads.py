"""Extra heads that exist only while training: what a cell holds, where the named object is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from p2p_export.calibration.tiny_vqa_composition import COLORS, GRID, LETTERS, ORDINALS, SHAPES


class TeachingHeads(nn.Module):
    """Losses on visual tokens after the projector and on the decoder's last hidden states."""

    def __init__(self, hidden_size: int, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.kind = nn.Linear(hidden_size, 3)
        self.place = nn.Linear(hidden_size, 2 * GRID)
        self.ground = nn.Linear(hidden_size, 2 * GRID)
        self.word_ids = [
            torch.tensor(tokenizer.convert_tokens_to_ids(list(names)))
            for names in (COLORS, SHAPES, LETTERS, ORDINALS)
        ]

    def cell_loss(
        self,
        visual: torch.Tensor,
        cells: torch.Tensor,
        embedding: torch.Tensor,
        *,
        order_weight: float,
    ) -> torch.Tensor:
        """visual [B, 64, D] and cells [B, 64, 5]: kind, row, column; words by the embedding.

        `order_weight` is that of a letter's place on its sign; the others weigh 1.
        """
        loss = cross_entropy(self.kind(visual).flatten(0, 1), cells[..., 0].flatten())
        where = torch.arange(GRID * GRID).expand(len(visual), -1)
        loss = loss + 0.5 * row_column_loss(self.place(visual), where)
        weights = (1.0, 1.0, 1.0, order_weight)
        for column, (ids, weight) in enumerate(zip(self.word_ids, weights, strict=True), start=1):
            known = cells[..., column] >= 0
            scores = visual[known] @ embedding[ids].T
            if weight > 0:
                loss = loss + weight * cross_entropy(scores, cells[..., column][known])
        return loss

    def ground_loss(self, hidden: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """hidden [G, D] at the words that name something, and the cells [G] it is in."""
        return row_column_loss(self.ground(hidden), cells)


def row_column_loss(scores: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Cross entropy of row and column; scores [..., 2 * GRID], cells [...]."""
    rows, columns = scores.float().flatten(0, -2).split(GRID, dim=-1)
    cells = cells.flatten()
    return cross_entropy(rows, cells // GRID) + cross_entropy(columns, cells % GRID)
