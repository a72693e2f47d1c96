"""Writes the pages of the documentation site: copies of the Markdown files of this repository, pages for the source
files that they link to, and reference pages that the program itself writes.

Pages keep their places, so links between them work as they do in the repository.
"""
import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()[^()\s]+(?=\))")
LANGUAGES = {".cpp": "cpp", ".c": "c", ".h": "c", ".hpp": "cpp", ".py": "python", ".yaml": "yaml", ".sbatch": "bash", ".toml": "toml"}


def github_slug(text, separator):
    """Returns the anchor that GitHub gives to a heading, because the links in the files are made for it."""
    text = unicodedata.normalize("NFC", text).lower()
    return "".join(c for c in text if c.isalnum() or c in "-_ ").replace(" ", separator)


def tracked_pages():
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                           capture_output=True, text=True, check=True).stdout.split()
    return [name for name in sorted(set(names)) if (ROOT / name).is_file()]


def source_page(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"# {posixpath.basename(name)}\n\n`{name}`\n\n{fence}{LANGUAGES.get(pathlib.Path(name).suffix, 'text')}\n{text}{fence}\n"


def source_files(page, text):
    """Returns the source files that a page links to, as (link, path in the repository)."""
    found = []
    for link in LINK.findall(text):
        path = link.partition("#")[0]
        if ":" in path or not path or path.endswith((".md", ".svg")):
            continue
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if (ROOT / name).is_file():
            found.append((link, name))
    return found


def cell(text):
    return str(text).replace("|", "&#124;").replace("\n", " ")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]) + "\n"


def code(value):
    if value in (None, ""):
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value)
    if "|" not in text:
        return f"`{text}`"
    # A code span cannot escape the character that separates the cells of a table.
    return "<code>" + "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text) + "</code>"


def keys_page(yoke):
    """Returns the keys of a run file, one table for each of its tables."""
    tables = {}
    for key in yoke("config", "schema", "--json"):
        name, _, rest = key["key"].rpartition(".")
        tables.setdefault(name, []).append((rest, key))
    text = ("# Keys of a run file\n\nA run file is TOML. Each key can also be set on the command line, as in "
            "`train.steps=10`, and each key that is not a list by an environment variable, as in `YOKE_TRAIN_STEPS=10`. "
            "[The run file](../docs/run_file.md) explains how they are combined.\n")
    for name, keys in tables.items():
        rows = [(f"`{rest}`", key["type"], "required" if key["required"] else code(key["default"]), key["allowed"],
                 key["doc"]) for rest, key in keys]
        text += f"\n## {f'[{name}]' if name else 'Outside of tables'}\n\n"
        text += table(("key", "type", "default", "allowed", "meaning"), rows)
    return text


def allowed(option):
    """Returns the values of an option, as the table of `yoke backends info` prints them."""
    if option["choices"]:
        return ", ".join(f"`{choice}`" for choice in option["choices"])
    if option["type"] == "bool":
        return "`true`, `false`"
    if option.get("min") is not None and option.get("max") is not None:
        return f"{option['min']} to {option['max']}"
    return "any"


def options_page(yoke, backends):
    text = ("# Options of the backends\n\nAn option is a key of the run file in the table of its backend, such as "
            "`ptd.unit_bytes`.\n")
    for backend in backends:
        info = yoke("backends", "info", backend, "--json")
        rows = [(f"`{option['key']}`", option["type"], code(option["default"]), allowed(option), option["doc"])
                for option in info["options"]]
        text += f"\n## {backend}\n\n{info['summary']}\n\n"
        text += table(("option", "type", "default", "allowed", "meaning"), rows) if rows else "It has no options.\n"
    return text


def commands_page(program):
    """Returns the help texts of all commands."""
    def help_of(*words):
        return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout

    def listed(text, before):
        """Returns the commands in the paragraph that follows `before`."""
        lines = text.partition(before)[2].lstrip("\n").partition("\n\n")[0]
        return re.findall(r"^  (\w+) ", lines, re.MULTILINE)

    text = "# Commands\n"
    pending = [[name] for name in listed(help_of(), "usage: yoke COMMAND ...\n")]
    while pending:
        words = pending.pop(0)
        own = help_of(*words)
        text += f"\n{'#' * (len(words) + 1)} yoke {' '.join(words)}\n\n```text\n{own.strip()}\n```\n"
        pending = [[*words, name] for name in listed(own, "\nSubcommands:\n")] + pending
    return text


def link_generated(page, text, pages):
    """Turns the path of a reference page into a link to it. In the repository it is only a path, since no such file is there."""
    def link(match):
        name = match[1]
        return f"[{match[0]}]({posixpath.relpath(name, posixpath.dirname(page))})" if name in pages else match[0]

    return re.sub(r"`(reference/\w+\.md)`", link, text) if page.endswith("README.md") or page.startswith("docs/") else text


def write_pages(folder, program):
    """Fills the folder with all pages. program: the yoke of a build."""
    def yoke(*words):
        return json.loads(subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout)

    pages = {}
    for name in tracked_pages():
        text = (ROOT / name).read_text(encoding="utf-8")
        for link, source in source_files(name, text):
            pages[source + ".md"] = source_page(source)
            text = text.replace(f"]({link})", f"]({link}.md)")
        # A word for tests/docs, which the site generator would take for a part of the text.
        pages[name] = text.replace("```sh fails\n", "```sh\n")
    shipped = [backend["name"] for backend in yoke("backends", "list", "--json") if backend["status"] == "ok"]
    pages["reference/keys.md"] = keys_page(yoke)
    pages["reference/options.md"] = options_page(yoke, shipped)
    pages["reference/commands.md"] = commands_page(program)
    pages = {name: link_generated(name, text, pages) for name, text in pages.items()}
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs/pictures", folder / "docs/pictures")
    shutil.copy(ROOT / "docs/site/site.css", folder / "site.css")
    return sorted(pages)
