#!/usr/bin/env python3
"""Prints what a version of the contract promises, as assertions for tests/abi/gates/frozen.c.

    sdk/abi/freeze.py sdk/abi/v1.0/parallel_backend.h > sdk/abi/v1.0/frozen.inc

Run once for each minor version, by clang's eyes: offset, size and type of every field, size of every struct,
value of every constant, type of every other name. The result is never edited and never made again.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

MAY_CHANGE = {"YOKE_ABI_MINOR"}


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def declarations(header):
    tree = json.loads(run("clang", "-std=c99", "-fsyntax-only", "-Xclang", "-ast-dump=json", "-x", "c", header))
    ours = re.compile("Yoke|ParallelBackend|parallel_backend")
    return [d for d in tree["inner"] if ours.match(d.get("name", "")) or d["kind"] == "EnumDecl"]


def structs(found):
    """[(name, [(field, type)])] in the order of the header."""
    records = [d for d in found if d["kind"] == "RecordDecl" and d.get("completeDefinition")]
    return [(r["name"], [(f["name"], f["type"]["qualType"]) for f in r["inner"] if f["kind"] == "FieldDecl"])
            for r in records]


def layout(header, all_structs):
    """{(struct, field): (offset, size)}, with field "" for the struct itself."""
    lines = []
    for name, fields in all_structs:
        lines.append(f'printf("{name}  0 %zu\\n", sizeof({name}));')
        for field, _ in fields:
            lines.append(f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));')
    source = f'#include "{header}"\n#include <stdio.h>\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
    with tempfile.TemporaryDirectory() as folder:
        run("clang", "-x", "c", "-", "-I.", "-o", f"{folder}/layout", input=source)
        rows = [line.split(" ") for line in run(f"{folder}/layout").splitlines()]
    return {(s, f): (int(offset), int(size)) for s, f, offset, size in rows}


def constants(header, found):
    """[(name, value)]: enumerators, then macros that are a number."""
    values = []
    for enum in found:
        if enum["kind"] == "EnumDecl":
            values += [(c["name"], int(c["inner"][0]["value"])) for c in enum["inner"]]
    for line in run("clang", "-E", "-dM", "-x", "c", header).splitlines():
        macro = re.fullmatch(r"#define (YOKE_\w+) (\d\w*)", line)
        if macro and macro[1] not in MAY_CHANGE:
            values.append((macro[1], int(macro[2].rstrip("uU"), 0)))
    return values


def assertions(header):
    found = declarations(header)
    all_structs = structs(found)
    places = layout(header, all_structs)
    for name, fields in all_structs:
        grows = fields[0] == ("header", "YokeHeader")
        yield f'{"GROWING" if grows else "FROZEN"}_STRUCT({name}, {places[name, ""][1]})'
        for field, kind in fields:
            offset, size = places[name, field]
            yield f"FROZEN_FIELD({name}, {field}, {offset}, {size}, {kind})"
    for name, value in constants(header, found):
        yield f"FROZEN_VALUE({name}, {value})"
    names = {name for name, _ in all_structs}
    for d in found:
        if d["kind"] == "FunctionDecl":
            yield f"FROZEN_FUNCTION({d['name']}, {d['type']['qualType'].replace('(', '(*)(', 1)})"
        if d["kind"] == "TypedefDecl" and d["name"] not in names:
            yield f"FROZEN_TYPE({d['name']}, {d['type']['qualType']})"


if len(sys.argv) != 2:
    sys.exit(__doc__)
version = pathlib.Path(sys.argv[1]).parent.name.removeprefix("v")
print(f"/* What version {version} of the contract promises. Made once by sdk/abi/freeze.py, never edited. */")
for text in assertions(sys.argv[1]):
    print(text)
