// A page that is opened from the disk may not start a worker, which the search of the site needs. There, and only there,
// the script of a worker runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = []; // messages until the script is loaded
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.frame.addEventListener("load", () => this.start(String(url)), { once: true });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (message) => {
        const data = structuredClone(message);
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data }))); // later, as from a worker
      };
      const script = inside.document.createElement("script");
      script.src = url;
      script.onerror = (event) => this.onerror?.(event);
      script.onload = () => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((data) => this.postMessage(data));
      };
      inside.document.head.append(script);
    }

    postMessage(data) {
      if (this.waiting) return void this.waiting.push(data);
      const inside = this.frame.contentWindow; // its copy of the data is made of its own arrays and objects
      const event = new inside.MessageEvent("message", { data: inside.structuredClone(data) });
      setTimeout(() => inside.dispatchEvent(event));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
