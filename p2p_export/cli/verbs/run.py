"""`p2p-export run`: ask a bundle a question about an image. Needs no torch."""

from __future__ import annotations

import argparse

from p2p_export.cli.arguments import add_json, positive_int
from p2p_export.cli.console import Console

DESCRIPTION = """\
Ask a bundle a question about an image (or about several, or about none) and print the answer.

Needs NumPy, ONNX Runtime, pillow, tokenizers and jinja2; no torch and no transformers."""

EXAMPLE = """\
p2p-export run bundle/ --image photo.png --prompt "is there a red circle ?"
p2p-export run bundle/ --image photo.png --prompt "is there a red circle ?" --dense --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="bundle/", help="the bundle folder")
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="an image; may be repeated"
    )
    parser.add_argument("--prompt", metavar="TEXT", required=True, help="the question")
    parser.add_argument(
        "--max-new-tokens", type=positive_int, default=64, metavar="N", help="answer length (64)"
    )
    parser.add_argument(
        "--dense", action="store_true", help="ask the unpruned decoder of the bundle"
    )
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads of one call (default: all)"
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.engines.answering import BundleAnswerer

    answerer = BundleAnswerer(args.bundle, dense=args.dense, threads=args.threads)
    answer = answerer.answer(args.image, args.prompt, max_new_tokens=args.max_new_tokens)
    if args.json:
        console.document({"decoder": "dense" if args.dense else "pruned", **answer.to_dict()})
        return 0
    console.say(answer.text)
    console.progress.say(
        f"{answer.prompt_tokens} prompt tokens, {answer.visual_tokens} visual; vision "
        f"{answer.vision_ms:.1f} ms, prefill {answer.prefill_ms:.1f} ms, "
        f"{len(answer.token_ids)} tokens in {answer.decode_ms:.1f} ms"
    )
    return 0
