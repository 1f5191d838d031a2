// Search without a server: browsers start no worker from a file:// page, so the search script runs in a frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      const script = document.createElement("script")
      script.src = new URL(url, location.href).href
      frame.hidden = true
      document.documentElement.append(frame)
      frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame = frame
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
      })
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
