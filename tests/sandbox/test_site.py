"""The site that `make docs` builds: complete, without a request to other hosts, and usable.

The packages that build it are installed by `make docs`. Where they or a browser are missing, the
tests are skipped and say so.
"""

import functools
import html.parser
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import ROOT

from impala_mm.records.metric_descriptions import METRICS

sys.path.append(str(ROOT / "sandbox" / "site"))

import code_pages

pytest.importorskip("mkdocs", reason="`make docs` installs what builds the site")
pytestmark = pytest.mark.slow

# What Material's script may load: from none of these, since no page has what it is for.
_UNUSED = {
    "https://unpkg.com/mermaid@": "mermaid",
    "https://unpkg.com/resize-observer-polyfill": "resize-observer",
    "https://api.github.com/": "data-md-component=source",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; broken links and anchors, and pages without a place, end the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
    ran = subprocess.run(
        [*command, "--config-file=sandbox/site/mkdocs.yml"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


class _Loads(html.parser.HTMLParser):
    """A parser that collects what a browser loads by itself, and what a reader may click."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.ids.add(known.get("id"))
        if tag == "a":
            self.links.append(known.get("href") or "")
        else:
            self.loaded += [known[name] for name in ("src", "srcset", "data") if known.get(name)]
            if tag == "link" and known.get("rel") not in ("prev", "next", "canonical"):
                self.loaded.append(known["href"])


def test_the_command_opens_the_site_or_says_where_it_is(site, tmp_path):
    shutil.copytree(ROOT / "impala_mm", tmp_path / "impala_mm")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "site").symlink_to(site)
    code = "from impala_mm import console; console.run_impala_mm()"
    command = [sys.executable, "-c", code, "docs", "--open"]
    page = tmp_path / "build" / "site" / "index.html"
    for browser, said in (
        ("/bin/echo opened %s", f"opened {page.as_uri()}"),
        ("/bin/false %s", "no browser"),
    ):
        environment = os.environ | {"BROWSER": browser, "PATH": str(tmp_path), "DISPLAY": ""}
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.stdout.startswith(f"{page}\n")
        assert said in ran.stdout + ran.stderr


def test_nothing_is_loaded_from_another_host(site):
    for path in site.rglob("*.html"):
        for address in _Loads(path.read_text()).loaded:
            assert not re.match(r"(\w+:)?//", address), f"{path.name} loads {address}"
            if not address.startswith("data:"):
                folder = site if address.startswith("/") else path.parent
                assert (folder / address.lstrip("/").split("?")[0]).exists(), address
    for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
        found = re.findall(r"(?:url\(|@import|href=)\s*[\"']?(\w*:?//[^\"')]*)", path.read_text())
        assert not found, f"{path.name} loads {found}"
    scripts = "".join(path.read_text() for path in site.rglob("*.js"))
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    for address in re.findall(
        r"[\"'`](https?://[^\"'`$]+\.js|https?://(?:api|cdn)\.[^\"'`]*)", scripts
    ):
        known = next((mark for start, mark in _UNUSED.items() if address.startswith(start)), None)
        assert known, f"a script may load {address}"
        assert f'class="{known}"' not in pages
        assert known not in pages


def test_pages_in_markdown_and_from_the_code_are_there(site):
    def ids(name):
        return _Loads((site / name).read_text()).ids

    assert code_pages.flag_pages().keys() <= ids("reference/flags.html") | ids(
        "reference/frontend.html"
    )
    assert {"impala_mm.train", "impala_mm.policy.policy.Policy.act", "nets.make"} <= ids(
        "reference/python.html"
    )
    metrics = (site / "sandbox" / "metrics.html").read_text()
    assert all(f"<code>{key}" in metrics for key in METRICS)
    running = (site / "sandbox" / "running.html").read_text()
    assert '<a href="../reference/flags.html#inference">' in running
    start = (site / "index.html").read_text()
    assert 'href="sandbox/curves.html#beside-published-results"' in start
    assert 'src="sandbox/processes.svg"' in start


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(site):
    handler = functools.partial(_Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


_BROKEN = {
    "absent pictures": "[...document.images].filter(i => i.complete && !i.naturalWidth)",
    "tables wider than the page": "[...document.querySelectorAll('article table:not([class])')]"
    ".filter(t => t.scrollWidth > t.closest('.md-typeset__scrollwrap').clientWidth + 1)",
}


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (820, "light"), (1400, "light")])
def test_a_reader_sees_whole_pages_without_errors(site, address, chromium, width, scheme):
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, requests, errors = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if Path(name).suffixes[:-1] or name == "404.html":
            continue  # a file of code
        page.goto(f"{address}/{name}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} pixels wide"
        for what, selected in _BROKEN.items():
            assert not page.evaluate(f"{selected}.length"), f"{name}: {what}"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 384) == (scheme == "dark")
    assert not [url for url in requests if not url.startswith((address, "data:", "blob:"))]
    assert not errors
    context.close()


@pytest.mark.parametrize(
    ("words", "name", "served"),
    [("queue_capacity", "reference/flags.html", True), ("V-trace", "sandbox/impala.html", False)],
    ids=["served", "from files"],
)
def test_the_search_finds_flags_and_words(site, address, chromium, words, name, served):
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    _search(page, address if served else site.as_uri(), words)
    page.locator(f".md-search-result__link[href*='{name}']").first.wait_for(timeout=20_000)
    page.close()


def _search(page, address, words):
    page.goto(f"{address}/sandbox/concepts.html")
    page.keyboard.press("/")
    page.keyboard.type(words)


# What people type, and the page that they look for.
_SEARCHED = {
    "install": "sandbox/first_run",
    "quick start": "sandbox/first_run",
    "hyperparameters": "sandbox/settings",
    "presets": "sandbox/settings",
    "resume": "sandbox/keeping",
    "checkpoint": "sandbox/keeping",
    "custom environment": "sandbox/own_environment",
    "custom algorithm": "sandbox/own_algorithm",
    "custom network": "sandbox/networks",
    "gradient clipping": "reference/flags",
    "replay buffer": "sandbox/replay",
    "distillation": "sandbox/teachers",
    "slurm": "sandbox/slurm",
    "kubernetes": "sandbox/kubernetes",
    "docker": "docker/images",
    "multi gpu": "sandbox/gpus",
    "ssh": "sandbox/cluster",
    "tensorboard": "sandbox/plots",
    "video": "sandbox/export_and_video",
    "benchmark": "sandbox/speed",
    "error message": "sandbox/troubleshooting",
}


def test_words_that_people_search_for_lead_to_their_page(address, chromium):
    page, missed = chromium.new_page(viewport={"width": 1400, "height": 900}), {}
    for words, name in _SEARCHED.items():
        _search(page, address, words)
        links = page.locator(".md-search-result__link")
        links.first.wait_for(timeout=20_000)
        shown = [link.get_attribute("href").split("?")[0] for link in links.all()]
        first = list(dict.fromkeys(each.split("#")[0].split("/", 3)[-1] for each in shown))[:3]
        if f"{name}.html" not in first:
            missed[words] = first
    page.close()
    assert not missed, missed
