#!/usr/bin/env python3
"""Draws the pictures of docs/what_happens_in_a_step.md from the forecasts of `yoke plan`.

    docs/site/pictures.py [--yoke PROGRAM] [--check]

  --yoke PROGRAM   program that makes the forecasts; default build/release/bin/yoke
  --check          writes nothing, and fails if a picture in docs/pictures is not the one that it would write
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/pictures"
RUN = ["configs/llama_150m.toml", "train.micro_batch=1", "train.global_batch=8", "--world", "4"]
SCHEDULES = {"fsdp": ["dp_shards=4"], "1f1b": ["pp_degree=4", "ptd.pp_schedule=1f1b"],
             "zb_v": ["pp_degree=4", "ptd.pp_schedule=zb_v"]}
LAYOUTS = {"DDP": ["dp_degree=4"], "FSDP": ["dp_shards=4"],
           "FSDP, recomputation": ["dp_shards=4", "ptd.activation_checkpoint=full"],
           "tensor parallelism": ["tp_degree=4"], "pipeline, zb_v": ["pp_degree=4", "ptd.pp_schedule=zb_v"]}
PARTS = {"parameters": "#0072b2", "gradients": "#e69f00", "optimizer": "#009e73", "unsharded": "#d55e00",
         "activations": "#56b4e9", "temporary": "#999999"}
LEFT, WIDTH, ROW, TOP = 170, 560, 34, 64
GIB = 2**30


def plan(yoke, *words):
    return subprocess.run([yoke, "plan", *RUN, *words], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def memory_of(yoke, layout):
    """Returns the bytes of each part at the peak of the rank that needs the most."""
    ranks = json.loads(plan(yoke, *layout, "--json"))["forecast"]["ranks"]
    rank = max(ranks, key=lambda r: r["peak_bytes"])
    at_peak = rank["actions"][rank["peak_action"]]
    values = [rank["param_bytes"], rank["grad_bytes"], rank["optimizer_bytes"], at_peak["unsharded_bytes"],
              at_peak["activation_bytes"], at_peak["temporary_bytes"]]
    return dict(zip(PARTS, values, strict=True))


def memory_picture(yoke):
    rows = {name: memory_of(yoke, layout) for name, layout in LAYOUTS.items()}
    scale = WIDTH / max(sum(parts.values()) for parts in rows.values())
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 80} {TOP + ROW * len(rows)}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>',
           '<text x="8" y="20">Memory of the rank that needs the most: llama-150m in bf16, 4 ranks</text>']
    x = 8
    for part, colour in PARTS.items():
        out += [f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>', f'<text x="{x + 17}" y="44">{part}</text>']
        x += 105
    for i, (name, parts) in enumerate(rows.items()):
        x, y = LEFT, TOP + ROW * i
        out.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{name}</text>')
        for part, value in parts.items():
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="22" fill="{PARTS[part]}"/>')
            x += value * scale
        out.append(f'<text x="{x + 6:.1f}" y="{y + 16}">{sum(parts.values()) / GIB:.1f} GiB</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def pictures(yoke):
    """Returns the pictures by their names."""
    drawn = {"memory.svg": memory_picture(yoke)}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in SCHEDULES.items():
            path = pathlib.Path(folder) / "plan.svg"
            plan(yoke, *words, "--svg", path)
            drawn[f"{name}.svg"] = path.read_text(encoding="utf-8")
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=ROOT / "build/release/bin/yoke")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    drawn = pictures(options.yoke.resolve())
    if not options.check:
        for name, text in drawn.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    old = [name for name, text in drawn.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    for name in old:
        print(f"docs/pictures/{name} is not what docs/site/pictures.py draws; run it", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
