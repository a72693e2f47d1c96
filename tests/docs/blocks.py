"""Finds the blocks of commands in the documents.

A block without a language, or in `sh`, is a list of commands, and begins with one of PROGRAMS. A block with a title is a
file. The commands of a block behind a comment `<!-- not run: REASON -->` are not run. Those of a block in `sh fails` end
with exit code 1. Blocks in other languages, such as `text`, are output and examples.
"""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# All documents with commands: the README, the guides, and the documents of the folders.
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
         *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "plugins").glob("*/README.md"))), "sdk/README.md",
         "bench/README.md"]
PROGRAMS = re.compile(r"(yoke|scripts/|build/|cmake|cpack|ctest|accelerate|torchrun|mpirun|srun|sbatch|kubectl|python3?|export|git|pip|"
                      r"mkdir|cd|curl|bench/|[A-Za-z_]+=|head|umask|tar|printf|openssl|cat|sed|install|\(umask)(?=[\s/=_a-z]|$)")
SHELL = ("", "sh", "bash", "sh fails")
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\s*$")


@dataclasses.dataclass
class Block:
    page: str
    line: int
    text: str
    reason: str  # why it is not run; "" = it is run
    file: str = ""  # name of the file that the block is; "" = it is commands
    fails: bool = False

    def begins_with_a_program(self):
        first = next((line for line in self.text.splitlines() if line.strip() and not line.startswith("#")), "")
        return PROGRAMS.match(first.strip()) is not None


def blocks_of(page, text):
    """Returns the blocks of a page that are commands or files. Blocks in a list are indented."""
    found, begin, reason, own = [], None, "", []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip().startswith("```"):
            if begin is None:
                begin, own, language = number, [], line.strip()[3:].strip()
                continue
            if title := TITLE.search(language):
                found.append(Block(page, begin, "\n".join(own) + "\n", reason, title[1]))
            elif language in SHELL:
                found.append(Block(page, begin, "\n".join(own), reason, fails=language.endswith("fails")))
            begin, reason = None, ""
        elif begin is not None:
            own.append(line)
        elif line.strip():
            mark = NOT_RUN.match(line.strip())
            reason = mark.group(1) if mark else ""
    return found


def blocks_of_page(page):
    return blocks_of(page, (ROOT / page).read_text(encoding="utf-8"))
