#!/usr/bin/env python3
"""The gates that a change of parallel_backend.h must pass.

    gates.py frozen|baseline|version|types     checks the header of this tree
    gates.py symbols FOLDER                    checks the backends built in FOLDER
    gates.py baseline --write FOLDER           writes FOLDER/contract.abi, once for each minor version

Each gate is a function. It takes a folder that contains yoke/parallel_backend.h and returns a list of complaints. The
exit code is 77 (skipped) if a tool is missing.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SDK = HERE.parents[2] / "sdk"
CHANGELOG = HERE.parents[2] / "CHANGELOG.md"
COMPILERS = ("gcc -std=c11 -x c", "g++ -std=c++17 -x c++", "clang -std=c11 -x c", "clang++ -std=c++17 -x c++")


def need(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        print(f"SKIPPED: {', '.join(missing)} not found; scripts/setup installs it")
        sys.exit(77)


def run(*words, cwd=None):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=cwd)


def header_of(include):
    return (include / "yoke/parallel_backend.h").read_text()


def minor_of(text):
    return int(re.search(r"#define YOKE_ABI_MINOR (\d+)", text)[1])


def newest_frozen():
    """Returns the folder of the newest frozen version."""
    return max((SDK / "abi").glob("v1.*"), key=lambda v: int(v.name.split(".")[1]))


def structs_of(text):
    return re.findall(r"^\} (\w+);", text, re.MULTILINE)


def frozen(include):
    """Checks that layouts, values and types are those of every frozen version, with gcc and clang, in C and C++."""
    complaints = []
    for compiler in COMPILERS:
        done = run(*compiler.split(), "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", include, "-I", SDK / "abi",
                   HERE / "frozen.c")
        if done.returncode != 0:
            complaints.append(f"{compiler}: {done.stderr}")
    return complaints


def version(include, changelog=CHANGELOG):
    """Checks that the minor version has a heading in the section ABI of CHANGELOG.md."""
    section = changelog.read_text().partition("\n## ABI\n")[2].partition("\n## ")[0]
    minor = minor_of(header_of(include))
    if re.search(rf"^### 1\.{minor} ", section, re.MULTILINE):
        return []
    return [f"YOKE_ABI_MINOR is {minor}, and the section ABI of {changelog.name} has no heading '### 1.{minor} (date)'"]


def types(include):
    """Checks that all types have a fixed width: no bool, enum, long, size_t, union, bit-field or variadic function."""
    code = re.sub(r"/\*.*?\*/", "", header_of(include), flags=re.DOTALL)
    code = "\n".join(line for line in code.splitlines() if not line.startswith("#"))
    code = re.sub(r"enum \{.*?\};", "", code, flags=re.DOTALL)
    return [f"'{word}' in the contract" for word in
            re.findall(r"\b(?:bool|_Bool|enum|union|long|short|int|unsigned|signed|float|size_t)\b(?! *\*)|\.\.\.|\w+ *: *\d+",
                       code)]


def abi_of(include, folder):
    """Writes libabigail's description of a library that exports one function for each struct, and returns its path."""
    text = header_of(include)
    names = structs_of(text)
    entry = re.search(r"^const ParallelBackend\*\s+(\w+)\(", text, re.MULTILINE)[1]
    (folder / "witness.c").write_text('#include "yoke/parallel_backend.h"\n' + "".join(
        f"void witness_{name}({name}* it) {{ (void)it; }}\n" for name in names) +
        f"const ParallelBackend* {entry}(uint32_t host_minor, YokeError* err)"
        " { (void)host_minor; (void)err; return NULL; }\n")
    abi = folder / "contract.abi"
    for words in (["gcc", "-std=c99", "-g", "-shared", "-fPIC", "-I", include, "-o", "witness.so", "witness.c"],
                  ["abidw", "--no-comp-dir-path", "--no-show-locs", "--no-corpus-path", "--out-file", abi, "witness.so"]):
        done = run(*words, cwd=folder)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    # Without debug information, abidiff would see no struct and report no difference.
    unseen = [name for name in names if f"name='{name}'" not in abi.read_text()]
    if unseen:
        raise RuntimeError(f"libabigail does not see {unseen}")
    return abi


def baseline(include, changelog=CHANGELOG):
    """Checks with libabigail that nothing changed since the newest frozen version.

    A new minor version with a heading in CHANGELOG.md may add to the contract.
    """
    newest = newest_frozen()
    with tempfile.TemporaryDirectory() as folder:
        try:
            abi = abi_of(include, pathlib.Path(folder))
        except RuntimeError as e:
            return [str(e)]
        done = run("abidiff", newest / "contract.abi", abi)
    bumped = minor_of(header_of(include)) > minor_of((newest / "parallel_backend.h").read_text())
    if done.returncode == 0 or (done.returncode == 4 and bumped and not version(include, changelog)):
        return []
    return [f"abidiff ended with {done.returncode}; 4 is allowed with a new YOKE_ABI_MINOR and its line in "
            f"{changelog.name}:\n{done.stdout}{done.stderr}"]


def symbols(folder):
    """Checks that every backend exports the entry symbol and nothing else."""
    libraries = sorted(pathlib.Path(folder).glob("*.so"))
    complaints = [] if libraries else [f"no backend in {folder}"]
    for library in libraries:
        exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).stdout.splitlines()]
        if exported != ["parallel_backend_entry_v1"]:
            complaints.append(f"{library} exports {exported}")
    return complaints


GATES = {gate.__name__: gate for gate in (frozen, baseline, version, types)}


def main(words):
    need("gcc", "g++", "clang", "clang++", "abidw", "abidiff", "nm")
    if len(words) == 2 and words[0] == "symbols":
        return report(symbols(words[1]))
    if len(words) == 3 and words[:2] == ["baseline", "--write"]:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(words[2]) / "contract.abi").write_text(abi_of(SDK / "include", pathlib.Path(folder)).read_text())
        return 0
    if len(words) != 1 or words[0] not in GATES:
        sys.exit(__doc__)
    return report(GATES[words[0]](SDK / "include"))


def report(complaints):
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
