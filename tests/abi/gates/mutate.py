#!/usr/bin/env python3
"""Tests the gates: edits copies of the newest frozen contract and fails if a gate that must complain does not.

The header of the tree may already be ahead of the frozen one, and some gates would then complain about less.

A gate that never complained could be broken. Each row of EDITS describes one edit and names the gates that must
complain about it; other gates may complain as well. An empty set means that the edit is legal in a minor version, so
no gate may complain.
"""
import concurrent.futures
import pathlib
import re
import sys
import tempfile

import gates

FROZEN = (gates.newest_frozen() / "parallel_backend.h").read_text()
NEXT = gates.minor_of(FROZEN) + 1
MINOR = (r"(#define YOKE_ABI_MINOR )\d+", rf"\g<1>{NEXT}")
NO_LINE = "\n## ABI\n"
LINE = f"\n## ABI\n### 1.{NEXT} (later)\n- Something was appended.\n"

# (name, [(pattern, replacement)], gates that must complain, text of CHANGELOG.md or None for that of the tree)
EDITS = [
    ("slot inserted", [(r"(  int32_t \(\*init\)\()", r"  int32_t (*before)(void* ctx);\n\1")], {"frozen", "baseline"}, None),
    ("fields reordered", [(r"(  double loss_sum;.*\n)(  double loss_weight;.*\n)(  double grad_norm)", r"\2\1\3")],
     {"frozen", "baseline"}, None),
    ("field type changed", [(r"(const YokeBatch\* batch;\n)  int64_t step;", r"\1  double step;")], {"frozen", "baseline"}, None),
    ("sign of a field changed", [(r"uint32_t zero_stages", "int32_t zero_stages")], {"frozen", "baseline"}, None),
    ("signature of a slot changed", [(r"const YokeStepArgs\* args,\s+YokeStepResult\* out", "YokeStepResult* out, const YokeStepArgs* args")],
     {"frozen", "baseline"}, None),
    ("signature of a callback changed", [(r"(void \(\*drop_saved\)\(void\* ctx, )void\* saved", r"\1int64_t saved")],
     {"frozen", "baseline"}, None),
    ("status became unsigned", [(r"  int32_t (\(\*step\)\()", r"  uint32_t \1")], {"frozen", "baseline"}, None),
    ("constant changed", [(r"YOKE_UNAVAILABLE = 14", "YOKE_UNAVAILABLE = 16")], {"frozen"}, None),
    ("macro changed", [(r"(#define YOKE_ALL_AXES )0xffffffffu", r"\g<1>0x0fu")], {"frozen"}, None),
    ("const dropped", [(r"const (YokeTensor\* view; /\* count)", r"\1")], {"frozen"}, None),
    ("field renamed", [(r"double token_weight;", "double weight;")], {"frozen"}, None),
    ("constant renamed", [(r"\bYOKE_DATA_LOSS\b", "YOKE_LOSS")], {"frozen"}, None),
    ("field removed", [(r"  int64_t seq_len;\n", "")], {"frozen", "baseline"}, None),
    ("reserved field removed", [(r"(  uint32_t flags;\n)  uint32_t reserved;\n", r"\1")], {"frozen"}, None),
    ("text of an error cut", [(r"char text\[4096\]", "char text[1024]")], {"frozen", "baseline"}, None),
    ("frozen struct grown", [(r"(\} YokeString;)", r"  uint64_t capacity;\n\1")], {"frozen", "baseline"}, None),
    ("entry symbol renamed", [(r"parallel_backend_entry_v1\b", "parallel_backend_entry")], {"frozen", "baseline"}, None),
    ("name of the entry symbol changed", [(r'(#define YOKE_ENTRY_SYMBOL ")parallel_backend_entry_v1', r"\1yoke_entry_v1")],
     {"frozen"}, None),
    ("major version changed", [(r"(#define YOKE_ABI_MAJOR )1", r"\g<1>2")], {"frozen"}, None),
    ("field of the table made a size_t", [MINOR, (r"(\} YokeStepResult;)", r"  size_t bytes;\n\1")], {"types"}, LINE),
    ("field appended, same minor version", [(r"(\} YokeStepResult;)", r"  double later;\n\1")], {"baseline"}, None),
    ("field appended, nothing in the changelog", [MINOR, (r"(\} YokeStepResult;)", r"  double later;\n\1")],
     {"baseline", "version"}, NO_LINE),
    ("minor version raised, nothing in the changelog", [MINOR], {"version"}, NO_LINE),

    ("nothing changed", [], set(), None),
    ("comment changed", [(r"/\* one of YOKE_ID_\.\.\.,", "/* a number,")], set(), None),
    ("field appended", [MINOR, (r"(\} YokeStepResult;)", r"  double later;\n\1")], set(), LINE),
    ("slot appended", [MINOR, (r"(\} ParallelBackend;)", r"  int32_t (*later)(YokeContext* context, YokeError* err);\n\1")],
     set(), LINE),
    ("struct and constant added", [MINOR, (r"(/\* ---- The table)", r"enum { YOKE_LATER = 1 };\ntypedef struct YokeLater {\n"
                                           r"  YokeHeader header;\n  int64_t value;\n} YokeLater;\n\n\1")], set(), LINE),
]


def edited(text, changes):
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        if count == 0:
            raise ValueError(f"the header does not match {pattern!r} any more; update this edit")
    return text


def try_edit(edit):
    """Applies the edit and runs the gates. Returns whether the right gates complained, and a line of text."""
    name, changes, expected, changelog = edit
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder)
        (include / "yoke").mkdir()
        header = include / "yoke/parallel_backend.h"
        header.write_text(edited(FROZEN, changes))
        log = gates.CHANGELOG
        if changelog:
            log = include / "CHANGELOG.md"
            log.write_text(changelog)
        complaints = {"frozen": gates.frozen(include), "types": gates.types(include),
                      "baseline": gates.baseline(include, log), "version": gates.version(include, log)}
    complaining = {gate for gate, texts in complaints.items() if texts}
    good = expected <= complaining if expected else not complaining
    text = f"{'ok    ' if good else 'WRONG '} {name}: {', '.join(sorted(complaining)) or 'no complaint'}"
    if not good:
        text += f"; expected {', '.join(sorted(expected)) or 'no complaint'}\n{complaints}"
    return good, text


def main():
    gates.need("gcc", "g++", "clang", "clang++", "abidw", "abidiff")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(try_edit, EDITS))
    for _, text in results:
        print(text)
    wrong = sum(not good for good, _ in results)
    print(f"{len(EDITS)} edits, {wrong} with the wrong result")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
