// The search without a server: for a page that was opened from a file, browsers refuse the worker that searches, so a
// hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.onmessage = null
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc =
        "<script>postMessage = data => frameElement.reply(data)</script>" +
        `<script src="${encodeURI(address)}"></script>`
      frame.reply = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise(resolve => {
        frame.onload = () => resolve(frame.contentWindow)
      })
      document.body.append(frame)
    }

    async postMessage(data) {
      const inner = await this.loaded
      inner.dispatchEvent(new inner.MessageEvent("message", { data }))
    }
  }
}
