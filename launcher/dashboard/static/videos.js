// The videos of evaluations, the newest first. A video is only loaded when it is played.

import { formatTime, h, setText } from "./dom.js";

export class Videos {
  constructor(key) {
    this.key = key;
    this.player = h("video", { controls: true, preload: "metadata", muted: true, playsinline: true });
    this.picker = h("select", { "aria-label": "Video", change: () => this.play(this.picker.value) });
    this.empty = h("p", { class: "soft" }, "There is no video yet.");
    this.elsewhere = h("p", { class: "soft" });
    this.element = h("div", { class: "videos" }, this.empty, this.picker, this.player, this.elsewhere);
    this.update([], 0);
  }

  /** Show the command that records a video of a run in this folder. */
  setFolder(logdir) {
    setText(this.empty, `There is no video yet. This records one: python experiment.py --mode=test ` +
      `--logdir=${logdir} --video_dir=${logdir}/videos`);
  }

  update(videos, elsewhere) {
    const names = JSON.stringify([videos, elsewhere]);
    if (names === this.names) return;
    this.names = names;
    this.empty.hidden = videos.length + elsewhere > 0;
    this.elsewhere.hidden = !elsewhere;
    this.elsewhere.textContent = `Not shown: ${elsewhere} outside of the run's folder and of the dashboard's --logdir.`;
    this.picker.hidden = this.player.hidden = !videos.length;
    const newest = [...videos].sort((a, b) => b.time - a.time);
    this.picker.replaceChildren(...newest.map(({ key, name, time }) =>
      h("option", { value: key }, `${name}, ${formatTime(time)}`)));
    if (newest.length) this.play(newest[0].key);
  }

  play(key) {
    this.player.src = `run/${this.key}/video?key=${key}`;
  }
}
