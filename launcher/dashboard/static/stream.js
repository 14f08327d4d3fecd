// The connection by which the server tells this page what has changed (server-sent events).
//
// A computer that slept, or a tunnel that broke, leaves a connection that is silent. The server says
// something every two seconds, so that a longer silence opens a new one, which is told everything.

const SILENT_SECONDS = 12, RETRY_SECONDS = 3;
const EVENTS = ["runs", "about", "events", "processes", "rows", "hosts", "beat"];

export class Stream {
  /** `tell` is called with each event's name and content, `open` once for each new connection, and
   * `gone` if there is no such run any more. */
  constructor(key, { tell, open, state, gone }) {
    this.address = key ? `stream?run=${encodeURIComponent(key)}` : "stream";
    this.tell = tell;
    this.open = open;
    this.state = state;
    this.gone = gone;
    this.watch = setInterval(() => this.check(), 1000);
    this.onVisible = () => document.visibilityState === "visible" && this.check();
    document.addEventListener("visibilitychange", this.onVisible);
    addEventListener("online", this.onVisible);
    this.connect();
  }

  connect() {
    this.source?.close();
    this.wallHeard = Date.now();
    const source = new EventSource(this.address);
    this.source = source;
    source.onopen = () => this.open(); // it is live once an event comes: the server's thread is alive
    source.onerror = () => {
      this.state("reconnecting");
      if (source.readyState === EventSource.CLOSED) {
        this.retryAt = Date.now() + RETRY_SECONDS * 1000;
        this.explain();
      }
    };
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => {
        this.hear();
        this.tell(name, JSON.parse(event.data));
      });
    }
  }

  hear() {
    this.retryAt = null;
    this.wallHeard = Date.now();
    this.state("live");
  }

  /** Say why the connection was refused: a dashboard that was started again has another token, and
   * the folder of a run may have been removed. */
  async explain() {
    const answer = await fetch("about").catch(() => null);
    if (answer?.status === 403) this.state("replaced");
    if (answer?.ok) this.gone();
  }

  check() {
    const silent = (Date.now() - this.wallHeard) / 1000;
    if (silent > SILENT_SECONDS || (this.retryAt && Date.now() > this.retryAt)) {
      this.state("reconnecting");
      this.retryAt = null;
      this.connect();
    }
  }

  close() {
    clearInterval(this.watch);
    document.removeEventListener("visibilitychange", this.onVisible);
    removeEventListener("online", this.onVisible);
    this.source.close();
  }
}
