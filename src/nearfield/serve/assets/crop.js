// @ts-check
// The image on the stage, and the part of it that is searched: drawn with the pointer, moved with the keyboard.

const STEP = 0.02; // of the image, for a press of an arrow key
const SMALLEST = 0.04; // side of a part that a pointer draws; a smaller one is a click

/** Show the chosen image of the query, with the part that is searched. */
function showStage() {
  const example = state.examples[state.shown];
  at("stage").hidden = !example || example.kind !== "image";
  if (!example || example.kind !== "image") return at("frame").replaceChildren();
  const label = "The image that is searched. Arrow keys choose a part.";
  const image = h("img", { src: example.url, alt: "", draggable: "false" });
  const box = h("div", { class: "box", hidden: true });
  const frame = h("div", { class: "frame", tabindex: "0", role: "application", "aria-label": label }, image, box);
  at("frame").replaceChildren(frame);
  drawBox(box, example.box);
  const change = (/** @type {Box | null} */ to) => {
    example.box = to;
    example.vector = null;
    drawBox(box, to);
  };
  const done = () => {
    forgetFeedback();
    void search();
  };
  cropByPointer(frame, example, change, done);
  cropByKeys(frame, example, change, done);
}

/**
 * @param {HTMLElement} node
 * @param {Box | null} box
 */
function drawBox(node, box) {
  node.hidden = !box;
  if (!box) return;
  const [left, top, right, bottom] = box.map((v) => 100 * v);
  setStyle(node, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
}

/**
 * @param {HTMLElement} frame
 * @param {ImageExample} example
 * @param {(to: Box | null) => void} change
 * @param {() => void} done
 */
function cropByPointer(frame, example, change, done) {
  const clip = (/** @type {number} */ v) => Math.min(1, Math.max(0, v));
  const where = (/** @type {PointerEvent} */ event) => {
    const { left, top, width, height } = frame.getBoundingClientRect();
    return [clip((event.clientX - left) / width), clip((event.clientY - top) / height)];
  };
  /** @type {number[] | null} */
  let start = null;
  /** @type {Box | null} */
  let before = null;
  frame.addEventListener("pointerdown", (event) => {
    start = where(event);
    before = example.box;
    frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [x, y] = where(event);
    change([Math.min(x, start[0]), Math.min(y, start[1]), Math.max(x, start[0]), Math.max(y, start[1])]);
  });
  frame.addEventListener("pointerup", () => {
    if (!start) return;
    start = null;
    const box = example.box;
    if (box && (box[2] - box[0] < SMALLEST || box[3] - box[1] < SMALLEST)) change(null);
    if (before || example.box) done();
  });
  frame.addEventListener("pointercancel", () => {
    start = null;
    change(before);
  });
}

/**
 * @param {HTMLElement} frame
 * @param {ImageExample} example
 * @param {(to: Box | null) => void} change
 * @param {() => void} done
 */
function cropByKeys(frame, example, change, done) {
  /** @type {Record<string, [number, number]>} */
  const ways = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
  let timer = 0;
  frame.addEventListener("keydown", (event) => {
    const way = ways[event.key];
    if (!way && event.key !== "Escape") return;
    event.preventDefault();
    if (way) change(moved(example.box ?? [0.2, 0.2, 0.8, 0.8], way, event.shiftKey));
    else change(null);
    clearTimeout(timer);
    timer = setTimeout(done, 350);
  });
}

/**
 * A part of the image, moved, or with its lower right corner moved.
 * @param {Box} box
 * @param {[number, number]} way
 * @param {boolean} resize
 * @returns {Box}
 */
function moved([left, top, right, bottom], [dx, dy], resize) {
  if (resize) {
    const at = (/** @type {number} */ v, /** @type {number} */ low) => Math.min(1, Math.max(low + SMALLEST, v));
    return [left, top, at(right + dx, left), at(bottom + dy, top)];
  }
  const x = Math.min(1 - right, Math.max(-left, dx));
  const y = Math.min(1 - bottom, Math.max(-top, dy));
  return [left + x, top + y, Math.min(1, right + x), Math.min(1, bottom + y)];
}
