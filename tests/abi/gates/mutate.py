#!/usr/bin/env python3
"""Edits copies of the contract and fails when the gate that should notice stays silent.

A gate that has never refused anything proves nothing. Each row: what is done, how, and which gates must complain;
none = the edit is legal in a minor version. Gates may complain that are not named, but never about a legal edit.
"""
import concurrent.futures
import pathlib
import re
import sys
import tempfile

import gates

MINOR = (r"(#define YOKE_ABI_MINOR )0", r"\g<1>1")
LINE = "\n## ABI\n### 1.1 (later)\n- Something was appended.\n"

# (name, [(pattern, replacement)], gates that must complain, text of CHANGELOG.md or None for the real one)
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
     {"baseline", "version"}, None),
    ("minor version raised, nothing in the changelog", [MINOR], {"version"}, None),

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
            raise ValueError(f"the header has no {pattern!r} any more; bring the edit up to date")
    return text


def verdict(edit):
    """A line on what happened, and whether it is as it should be."""
    name, changes, expected, changelog = edit
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder)
        (include / "yoke").mkdir()
        header = include / "yoke/parallel_backend.h"
        header.write_text(edited(gates.header_of(gates.SDK / "include"), changes))
        log = gates.CHANGELOG
        if changelog:
            log = include / "CHANGELOG.md"
            log.write_text(changelog)
        complaints = {"frozen": gates.frozen(include), "types": gates.types(include),
                      "baseline": gates.baseline(include, log), "version": gates.version(include, log)}
    spoke = {gate for gate, said in complaints.items() if said}
    good = expected <= spoke if expected else not spoke
    text = f"{'ok    ' if good else 'WRONG '} {name}: {', '.join(sorted(spoke)) or 'silence'}"
    if not good:
        text += f"; expected {', '.join(sorted(expected)) or 'silence'}\n{complaints}"
    return good, text


def main():
    gates.need("gcc", "g++", "clang", "clang++", "abidw", "abidiff")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(verdict, EDITS))
    for _, text in verdicts:
        print(text)
    wrong = sum(not good for good, _ in verdicts)
    print(f"{len(EDITS)} edits, {wrong} with the wrong answer")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
