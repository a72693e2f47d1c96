#!/usr/bin/env python3
"""Runs every pair of an old or new plugin and an old or new host, under AddressSanitizer.

The old sides are compiled against the frozen header of each version. The new side is compiled against the header of
this tree with a field appended to every struct that may grow, and a slot appended to the function table, as a later
minor version may do. The results of all pairs must be equal. A plugin that writes past the end of its caller's struct must be
detected. If FOLDER, which contains the programs, is given, the real host also trains with a plugin of each age.

    old_new.py [FOLDER]
"""
import pathlib
import re
import subprocess
import sys
import tempfile

from gates import HERE, SDK, need, run

SANITIZE = ("-std=c99", "-g", "-Wall", "-Werror", "-fsanitize=address", "-fno-omit-frame-pointer")


def later(text):
    """Returns the header as a later minor version could be."""
    text, fields = re.subn(r"(typedef struct \w+ \{\n  YokeHeader header;.*?)(^\} \w+;)", r"\1  int64_t later;\n\2", text,
                           flags=re.DOTALL | re.MULTILINE)
    text, slots = re.subn(r"  int64_t later;\n(\} ParallelBackend;)", r"  int32_t (*later)(int64_t value);\n\1", text)
    text, minors = re.subn(r"(#define YOKE_ABI_MINOR )(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}\n#define YOKE_LATER", text)
    assert fields > 20 and slots == 1 and minors == 1, (fields, slots, minors)
    return text


def compiled(folder, name, source, include, *flags):
    done = run("gcc", *SANITIZE, *flags, "-I", include, "-c", "-o", folder / f"{name}.o", HERE / "old_new" / source)
    if done.returncode != 0:
        sys.exit(done.stderr)


def run_pair(folder, plugin, host):
    """Links and runs a pair. Returns (exit status, lines that must be equal, lines that start with "later", stderr)."""
    done = run("gcc", *SANITIZE, "-o", folder / "pair", folder / f"{plugin}.o", folder / f"{host}.o", "-lm")
    if done.returncode != 0:
        sys.exit(done.stderr)
    done = run(folder / "pair")
    lines = done.stdout.splitlines()
    new = [line for line in lines if line.startswith("later")]
    return done.returncode, [line for line in lines if line not in new], new, done.stderr


RUN = """
run.dir = "{dir}"
model.preset = "tiny"
model.layers = 1
data.path = "text.txt"
data.seq_len = 16
train.steps = 3
train.global_batch = 4
"""


def trained(folder, age, programs):
    """Trains with the real host and the C example built against one of the headers.

    Returns every loss and gradient norm, with all digits.
    """
    backend = folder / age / "serial.so"
    done = run("gcc", "-std=c99", "-shared", "-fPIC", "-I", folder / age, "-I", SDK / "include", "-o", backend,
               SDK / "examples/serial.c", "-lm")
    if done.returncode != 0:
        sys.exit(done.stderr)
    (folder / "text.txt").write_text("the ox pulls the cart; " * 200)
    (folder / "run.toml").write_text(RUN.format(dir=age + "/run"))
    done = run(programs / "yoke", "train", "run.toml", f"parallel_backend={backend}", "metrics.every=1", cwd=folder)
    if done.returncode != 0:
        return [done.stderr]
    return re.findall(r'"loss":[^,]*|"grad_norm":[^,]*', (folder / age / "run/metrics.jsonl").read_text())


def main(words):
    need("gcc")
    faults = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        headers = {version.name: (version / "parallel_backend.h").read_text() for version in (SDK / "abi").glob("v1.*")}
        headers["new"] = later((SDK / "include/yoke/parallel_backend.h").read_text())
        for age, text in headers.items():
            include = folder / age
            (include / "yoke").mkdir(parents=True)
            (include / "yoke/parallel_backend.h").write_text(text)
            compiled(folder, f"plugin_{age}", "plugin.c", include)
            compiled(folder, f"host_{age}", "host.c", include)
        compiled(folder, "plugin_careless", "plugin.c", folder / "new", "-DCARELESS")

        reference = None
        for plugin in headers:
            for host in headers:
                status, lines, new, err = run_pair(folder, f"plugin_{plugin}", f"host_{host}")
                reference = reference or lines
                print(f"{plugin} plugin, {host} host: exit {status}, {len(lines)} equal lines, {len(new)} later lines")
                if status != 0 or lines != reference or len(lines) < 8:
                    faults.append(f"{plugin} plugin, {host} host: exit {status}\n" + "\n".join(lines) + "\n" + err)
                if {plugin, host} == {"new"} and [line for line in new if not re.search(r" [1-9]\d*$", line)]:
                    faults.append(f"new fields do not arrive between a new plugin and a new host: {new}")
        status, _, _, err = run_pair(folder, "plugin_careless", "host_v1.0")
        if status == 0 or "heap-buffer-overflow" not in err:
            faults.append(f"a plugin that writes beyond the struct of an old host was not caught: exit {status}\n{err}")
        if words:
            numbers = {age: trained(folder, age, pathlib.Path(words[0]).resolve()) for age in headers}
            print(f"the real host: {len(numbers['new'])} numbers with plugins of the ages {', '.join(headers)}")
            if any(found != numbers["new"] or len(found) != 6 for found in numbers.values()):
                faults.append(f"the real host trains differently: {numbers}")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
