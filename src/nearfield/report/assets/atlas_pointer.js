// @ts-check
// What pointer and keyboard do on a map.

/**
 * Hover, click, drag, wheel and two fingers.
 * @param {Atlas} atlas
 * @param {(point: number) => void} click called with a point, -1 if there is none
 * @param {(item: number) => Child} about what the tooltip says of an item
 */
function atlasPointer(atlas, click, about) {
  const { canvas, state } = atlas;
  /** @type {Map<number, Point>} */
  const pointers = new Map();
  let dragged = false;
  /** @type {(event: MouseEvent) => Point} */
  const where = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, where(event));
    dragged = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = where(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      atlasHover(atlas, event, atlas.nearest(now), about);
      return;
    }
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    const moved = Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (other) pinch(atlas, before, now, other);
    else if (event.pointerType !== "touch" && (dragged || moved > 3)) {
      if (!dragged) canvas.setPointerCapture(event.pointerId);
      dragged = true;
      atlas.pan(now[0] - before[0], now[1] - before[1]);
    } else return;
    pointers.set(event.pointerId, now);
    hideTip();
  });
  for (const kind of /** @type {const} */ (["pointerup", "pointercancel", "pointerleave"])) {
    canvas.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }
  canvas.addEventListener("pointerleave", () => {
    hideTip();
    state.hover = -1;
    atlas.draw();
  });
  canvas.addEventListener("click", (event) => {
    if (!dragged) click(atlas.nearest(where(event)));
  });
  const wheel = (/** @type {WheelEvent} */ event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    atlas.zoom(Math.exp(-event.deltaY * 0.004), ...where(event));
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
}

/**
 * Zoom by two fingers, of which one moves.
 * @param {Atlas} atlas
 * @param {Point} before
 * @param {Point} now
 * @param {Point} other
 */
function pinch(atlas, before, now, other) {
  const gap = (/** @type {Point} */ p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
  atlas.zoom(gap(now) / Math.max(1, gap(before)), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
}

/**
 * @param {Atlas} atlas
 * @param {PointerEvent} event
 * @param {number} found the point under the pointer, -1 if there is none
 * @param {(item: number) => Child} about
 */
function atlasHover(atlas, event, found, about) {
  if (found !== atlas.state.hover) {
    atlas.state.hover = found;
    atlas.draw();
  }
  if (found < 0) {
    hideTip();
    return;
  }
  showTip(event.clientX, event.clientY, about(atlas.chosen[found]));
}

/**
 * @param {Atlas} atlas
 * @param {Record<string, () => void>} more what other keys do
 */
function atlasKeys(atlas, more) {
  /** @type {Record<string, () => void>} */
  const acts = {
    ArrowLeft: () => atlas.pan(60, 0),
    ArrowRight: () => atlas.pan(-60, 0),
    ArrowUp: () => atlas.pan(0, 60),
    ArrowDown: () => atlas.pan(0, -60),
    "+": () => atlas.zoom(1.4),
    "=": () => atlas.zoom(1.4),
    "-": () => atlas.zoom(1 / 1.4),
    0: () => atlas.showAll(),
    ...more,
  };
  atlas.canvas.addEventListener("keydown", (event) => {
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });
}

/**
 * Put the map on its stage, with buttons that zoom.
 * @param {Atlas} atlas
 * @param {HTMLElement} stage
 */
function atlasStage(atlas, stage) {
  const zoomButtons = [
    button("+", () => atlas.zoom(1.6), { "aria-label": "Zoom in" }),
    button("−", () => atlas.zoom(1 / 1.6), { "aria-label": "Zoom out" }),
    button("⤢", () => atlas.showAll(), { "aria-label": "Show all" }),
  ];
  stage.replaceChildren(atlas.canvas, h("div", { class: "zoom" }, zoomButtons));
  const resize = () => atlas.resize(stage.clientWidth);
  new ResizeObserver(resize).observe(stage);
  resize();
}
