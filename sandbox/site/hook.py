"""The pages of the site: MkDocs calls the functions `on_...` while it builds the site.

The site shows README.md and the pages in sandbox/ and docker/ as they are, under the same names, so
that their links work. A file of code that a page links becomes a page, too, and `code_pages` writes
pages from the code.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
sys.path[:0] = [str(_HERE), str(_ROOT)]

import code_pages  # noqa: E402
import formulas  # noqa: E402

from impala_mm.config import peer_names  # noqa: E402

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()[^)\s#]+")
_NAME = re.compile(r"\[([\w/.]+\.md)\]\((?=([^)\s#]+))")  # a link that shows a page's name
_AS_THEY_ARE = {".md", ".png", ".svg", ".gif"}
_LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".yaml": "yaml", ".js": "js"}
_FLAG = re.compile(r"<code>(--(\w+)[\w-]*)([^<]*)</code>")
_COMMAND = re.compile(r"<code>((?:python|make|impala)[^<]{30,})</code>")
# Parts of a page in which a flag's name is no link: links, headings and blocks of code.
_WHOLE = re.compile(r"(<a\b.*?</a>|<h\d.*?</h\d>|<pre\b.*?</pre>)", re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Let blocks of ```math become pictures of formulas."""
    math = {"name": "math", "class": "math", "format": formulas.render}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [math]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages, what they link, and the pages that are written from the code."""
    for path in pages():
        files.append(_as_it_is(path, config))
    for target in {target for path in pages() for target in _linked(path)} - {*pages()}:
        files.append(_file_of(target, config))
    for name, text in code_pages.pages().items():
        files.append(File.generated(config, name, content=text))


def pages() -> list[Path]:
    """Return the Markdown files that are the site's pages."""
    named = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sandbox/**/*.md", "docker/*.md")
    cards = ("impala_mm/shipped_policies/*/*.md",)
    return [path for pattern in named + cards for path in sorted(_ROOT.glob(pattern))]


def _as_it_is(path: Path, config: MkDocsConfig, **more: Any) -> File:
    name = path.relative_to(_ROOT).as_posix()
    return File.generated(config, name, abs_src_path=str(path), **more)


def _linked(page: Path) -> Iterator[Path]:
    """Yield the files and folders of this project that a page links."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        path = (page.parent / target).resolve()
        if "://" not in target and path.exists():
            yield path


def _file_of(path: Path, config: MkDocsConfig) -> File:
    """Return a picture as it is, and code as a page that the search does not find."""
    level = InclusionLevel.NOT_IN_NAV
    if path.suffix in _AS_THEY_ARE:
        return _as_it_is(path, config, inclusion=level)
    name = path.relative_to(_ROOT).as_posix()
    shown = sorted(path.iterdir()) if path.is_dir() else [path]
    texts = [f"# {name}", *map(_code, shown)]
    text = "\n\n".join(["---\nsearch:\n  exclude: true\n---", *texts])
    if path.suffix == ".ipynb":
        text = _notebook(path)
    elif path.parent == peer_names.TABLES:
        text = _peer_table(path.stem)
    return File.generated(config, f"{name}.md", content=text, inclusion=level)


def _code(path: Path) -> str:
    language = _LANGUAGES.get(path.suffix, "text")
    return f"`{path.name}`\n\n``````{language}\n{path.read_text()}``````"


def _peer_table(trainer: str) -> str:
    """Return the table of a trainer's flags as Markdown; those of ours become links."""
    lines = [f"# The flags of {trainer}", "", "| there | default | here | |", "|---|---|---|---|"]
    for row in peer_names.table(trainer):
        there = " ".join(f"`{name}`" for name in row.there.split())
        ours = [re.sub(r"--\w+[\w.,=]*\w", r"`\g<0>`", text) for text in row[2:]]
        lines.append(f"| {there} | {row.default} | {' | '.join(ours)} |")
    return "\n".join(lines)


def _notebook(path: Path) -> str:
    """Return the texts and the code of a notebook as Markdown."""
    cells = json.loads(path.read_text())["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(
        text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of code to their pages, and call pages by their titles."""
    folder = (_ROOT / page.file.src_uri).parent

    def entitle(match: re.Match) -> str:
        name = (folder / match[2]).resolve().relative_to(_ROOT).as_posix()
        linked = files.get_file_from_path(name)
        title = linked and linked.page and linked.page.title
        return f"[{title or match[1]}]("

    def lead(match: re.Match) -> str:
        path = (folder / match[0]).resolve()
        code = "://" not in match[0] and path.exists() and path.suffix not in _AS_THEY_ARE
        return f"{match[0].rstrip('/')}.md" if code else match[0]

    return _LINK.sub(lead, _NAME.sub(entitle, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the flags' names in the text, and mark long commands, for site.css."""
    html = _COMMAND.sub(r'<code class="command">\1</code>', html)
    known = code_pages.flag_pages()

    def link(match: re.Match) -> str:
        shown = f'<code><span class="flag">{match[1]}</span>{match[3]}</code>'
        if not (name := known.get(match[2])):
            return shown
        to = files.get_file_from_path(name).url_relative_to(page.file)
        return f'<a href="{to}#{match[2]}">{shown}</a>'

    parts = _WHOLE.split(html)
    parts[::2] = [_FLAG.sub(link, part) for part in parts[::2]]
    return "".join(parts)
