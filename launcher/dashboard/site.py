"""The addresses of a dashboard, and what is answered at each: a WSGI application.

Every address begins with the dashboard's token, `/TOKEN/...`, so that other users and web sites can
neither read nor change anything; programs may send it as `Authorization: Bearer TOKEN` instead.
Nothing of a run's text ever becomes markup: the page gets it as JSON, and shows it as text.
"""

import hmac
import mimetypes
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from werkzeug.exceptions import Forbidden, HTTPException, NotFound, ServiceUnavailable
from werkzeug.routing import Map, Rule
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response

from impala_mm.records.run_contents import PANELS
from impala_mm.runtime.safe_files import to_json
from launcher.dashboard import control, lineage, log_reader, openmetrics
from launcher.dashboard.run_finder import NoSuchRun
from launcher.dashboard.run_status import is_live
from launcher.dashboard.updates import TooManyPages, Updates
from launcher.dashboard.watched_run import WatchedRun

# Seconds without an update after which a run does not learn.
_LEARNING_SECONDS = 120.0
STATIC = Path(__file__).resolve().parent / "static"
_KINDS = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Site:
    """The application of one dashboard."""

    def __init__(
        self,
        updates: Updates,
        token: str,
        has_control: bool,
        shown: str,
        frontend_flags: Sequence[str] = (),
    ):
        """Answer requests with this token. `shown` is the name of the run that is shown first.

        `frontend_flags` are the user's, for the frontend's commands.
        """
        self._updates, self._token, self._frontend_flags = updates, token, frontend_flags
        self._has_control, self._shown = has_control, shown

    def __call__(
        self, environment: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request."""
        response = self._respond(Request(environment))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response(environment, start_response)

    def _respond(self, request: Request) -> Response:
        try:
            path = self._path_behind_token(request)
            if path == "/" and not request.path.endswith("/"):  # the page's addresses are relative
                return redirect(f"{request.path}/")
            adapter = _RULES.bind("localhost", path_info=path)
            endpoint, values = adapter.match(method=request.method)
            answer: Response = endpoint(self, request, **values)
            return answer
        except NoSuchRun:
            return _plain(404, "there is no such run any more")
        except HTTPException as error:
            return _plain(error.code or 500, error.description or error.name)

    def _path_behind_token(self, request: Request) -> str:
        """Return the path without the token. Raises Forbidden if the request has no right token."""
        given, _, path = request.path.lstrip("/").partition("/")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if _is_equal(given, self._token):
            return f"/{path}"
        if _is_equal(bearer, self._token):
            return request.path
        raise Forbidden("the address lacks the dashboard's token: open the address it has printed")

    # -- the page

    def _answer_page(self, _: Request) -> Response:
        return _file("index.html")

    def _answer_static(self, _: Request, name: str) -> Response:
        return _file(name)

    def _answer_about(self, _: Request) -> Response:
        """Return what does not change while the dashboard is running."""
        shown = [run.key for run in self._updates.find().values() if run.name == self._shown]
        return _json(
            {
                "control": self._has_control,
                "shown": shown[0] if shown else "",
                "folder": str(self._updates.folder),
                "panels": [panel._asdict() for panel in PANELS],
            }
        )

    def _answer_stream(self, request: Request) -> Response:
        key = request.args.get("run", "")
        if key:
            self._updates.find_one(key)
        try:
            messages = self._updates.open_page(key)
        except TooManyPages as error:
            raise ServiceUnavailable(str(error)) from None
        return Response(messages, mimetype="text/event-stream")

    def _answer_lineages(self, _: Request) -> Response:
        """Return who took from whom in the populations of the folder."""
        folder = self._updates.folder
        found = [lineage.read(path) for path in (folder, *sorted(folder.glob("*/")))]
        return _json([each for each in found if each])

    # -- one run

    def _answer_history(self, request: Request, key: str) -> Response:
        if metric := request.args.get("brief", ""):
            return _json(self._updates.brief_columns(key, metric))
        keys = ["frames", "seconds", *request.args.get("keys", "").split(",")]
        return _json(self._updates.with_run(key, lambda w: w.history.columns(keys)))

    def _answer_hosts(self, _: Request, key: str) -> Response:
        columns = self._updates.with_run(key, lambda w: w.hosts.columns(w.hosts.keys))
        return _json({name: column["mean"] for name, column in columns.items()})

    def _logs(self, key: str) -> dict[str, Path]:
        found: dict[str, Path] = self._updates.with_run(
            key, lambda w: log_reader.find_logs(w.found, w.status)
        )
        return found

    def _answer_logs(self, _: Request, key: str) -> Response:
        return _json(list(self._logs(key)))

    def _answer_log(self, request: Request, key: str) -> Response:
        path = self._logs(key).get(request.args.get("name", ""))
        if path is None:
            raise NotFound("this log is not on this machine (yet)")
        try:
            if text := request.args.get("search", ""):
                return _json(log_reader.search(path, text))
            before, after = (request.args.get(each, type=int) for each in ("before", "after"))
            return _json(log_reader.read_part(path, before, after))
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}") from None

    def _answer_video(self, request: Request, key: str) -> Response:
        video = request.args.get("key", "")
        try:
            with self._updates.with_run(key, lambda w: w.open_video(video)) as file:
                about = os.fstat(file.fileno())
                return send_file(
                    f"/proc/self/fd/{file.fileno()}",  # by its name another might be opened
                    request.environ,
                    mimetype="video/mp4",
                    download_name=f"{video}.mp4",
                    etag=f"{about.st_mtime_ns}-{about.st_size}",
                )
        except (KeyError, OSError):
            raise NotFound("there is no such video (any more)") from None

    def _answer_control(self, request: Request, key: str, action: str) -> Response:
        if not self._has_control:
            raise Forbidden("this dashboard only shows runs: start it with --dashboard_control")
        found = self._updates.find_one(key)
        try:
            return _json(control.act(found, action, self._frontend_flags))
        except control.Refused as error:
            return _json({"code": 2, "printed": str(error)})

    # -- for programs

    def _answer_metrics(self, _: Request) -> Response:
        text = openmetrics.render(self._updates.known_runs())
        return Response(text, content_type=openmetrics.CONTENT_TYPE)

    def _answer_healthz(self, request: Request) -> Response:
        within = request.args.get("within", default=_LEARNING_SECONDS, type=float)
        name = request.args.get("run", "")
        code, content = describe_health(self._updates.known_runs(), name, within)
        return _json(content, code)


_RULES = Map(
    [
        *(
            Rule(path, endpoint=answer, methods=["GET"])
            for path, answer in {
                "/": Site._answer_page,
                "/static/<path:name>": Site._answer_static,
                "/about": Site._answer_about,
                "/stream": Site._answer_stream,
                "/lineages": Site._answer_lineages,
                "/metrics": Site._answer_metrics,
                "/healthz": Site._answer_healthz,
                "/run/<key>/history": Site._answer_history,
                "/run/<key>/hosts": Site._answer_hosts,
                "/run/<key>/logs": Site._answer_logs,
                "/run/<key>/log": Site._answer_log,
                "/run/<key>/video": Site._answer_video,
            }.items()
        ),
        Rule("/run/<key>/control/<action>", endpoint=Site._answer_control, methods=["POST"]),
    ],
    merge_slashes=False,
)


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _file(name: str) -> Response:
    """Return a file of the page. Raises NotFound."""
    path = (STATIC / name).resolve()
    if STATIC not in path.parents or not path.is_file():
        raise NotFound("the page has no such file")
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    return Response(path.read_bytes(), content_type=f"{kind}; charset=utf-8")


def _json(content: Any, code: int = 200) -> Response:
    return Response(to_json(content), status=code, content_type="application/json")


def _plain(code: int, text: str) -> Response:
    return Response(f"{text}\n", status=code, content_type="text/plain; charset=utf-8")


def describe_health(
    runs: Mapping[str, WatchedRun], name: str, seconds: float
) -> tuple[int, dict[str, Any]]:
    """Return the status code and the content of the answer about all live runs, or about one.

    The code is 200 if each of them learns, or if no run is asked for and none is running; otherwise
    503, and 404 if there is no run of this name. A run learns while its number of updates grows.
    """
    found = {
        own: _describe_health(run, seconds)
        for own, run in runs.items()
        if name in ("", own, run.found.name)
    }
    if name and not found:
        return 404, {"runs": {}, "error": "there is no run of this name whose processes are known"}
    asked = found.values() if name else [each for each in found.values() if each["alive"]]
    is_well = all(each["learning"] for each in asked)
    return 200 if is_well else 503, {"runs": found}


def _describe_health(run: WatchedRun, seconds: float) -> dict[str, Any]:
    alive, silent = is_live(run.status) and run.status["state"] != "away", _since(run.update_time)
    return {
        "state": run.status["state"],
        "alive": alive,
        "learning": alive and silent is not None and silent < seconds,
        "seconds_since_row": _since(run.row_time),
        "seconds_since_update": silent,
        "updates": run.history.last.get("updates"),
        "updates_per_second": run.history.last.get("updates_per_second"),
    }


def _since(at: float | None) -> float | None:
    return None if at is None else round(time.time() - at, 1)
