// @ts-check
// The section of the atlas: its controls, its legend, and what pointer and keyboard do.

function atlasSection() {
  if (!D.atlas) return;
  const chosen = unpack(D.atlas.items);
  const maps = new Map(
    D.atlas.maps.map((m) => [m.method, once(() => Float32Array.from(unpack(m.xy), (v) => v / 65535))]),
  );
  const methods = byPlace(maps.keys());
  const atlas = new Atlas(chosen, got(maps, methods[0])());
  const { state } = atlas;
  const recolour = () => atlasCaption(atlas, atlas.recolour());
  const highlight = (/** @type {number[]} */ labels) => {
    state.lit = new Set(labels);
    recolour();
    say(labels.length ? `Highlighted ${labels.slice(0, 4).map(className).join(", ")}` : "No class highlighted");
  };
  const changeColours = (/** @type {ColourBy} */ by) => {
    state.by = by;
    recolour();
  };
  const filter = search("Highlight classes", "part of a class name", (text) => {
    const wanted = text.toLowerCase();
    const matching = range(items.classes.length).filter((c) => className(c).toLowerCase().includes(wanted));
    highlight(text ? matching : []);
  });
  const kinds = colourChoices();
  at("atlas-lead").textContent = atlasLead(chosen.length);
  at("atlas-controls").replaceChildren(
    ...present([
      choose("Method", methodOptions(methods), methods[0], (method) => atlas.travel(got(maps, method)())),
      kinds.length > 1 && segments("Colour by", kinds, state.by, changeColours),
      filter.field,
    ]),
  );
  const zoomButtons = [
    button("+", () => atlas.zoom(1.6), { "aria-label": "Zoom in" }),
    button("−", () => atlas.zoom(1 / 1.6), { "aria-label": "Zoom out" }),
    button("⤢", () => atlas.showAll(), { "aria-label": "Show all" }),
  ];
  at("atlas-stage").replaceChildren(atlas.canvas, h("div", { class: "zoom" }, zoomButtons));
  atlasPointer(atlas, highlight);
  atlasKeys(atlas, highlight);
  const resize = () => atlas.resize(at("atlas-stage").clientWidth);
  new ResizeObserver(resize).observe(at("atlas-stage"));
  resize();
  themed.push(recolour);
  recolour();
  Object.assign(atlas.canvas, { atlas });
}

/** @returns {Choice<ColourBy>[]} */
function colourChoices() {
  /** @type {Choice<ColourBy>[]} */
  const found = [{ value: "class", text: "Class" }];
  if (items.categories.length > 1) found.push({ value: "category", text: "Category" });
  if (defaultColours() === "none") found.push({ value: "none", text: "None" });
  return found;
}

function atlasLead(/** @type {number} */ count) {
  const all = items.labels.length;
  const share =
    count < all ? `${whole(count)} of ${whole(all)}, the same share of every class` : `all ${whole(count)} of them`;
  return (
    `Every point is a test image (${share}), placed by t-SNE: neighbours in the map are neighbours in the embedding, ` +
    "but distances between groups and the sizes of groups mean little. All maps are rotated to match the first."
  );
}

/**
 * The legend and what is highlighted.
 * @param {Atlas} atlas
 * @param {string[]} categoryColours
 */
function atlasCaption(atlas, categoryColours) {
  const { state, colours, chosen } = atlas;
  const lit = [...state.lit];
  const key = (/** @type {string} */ colour, /** @type {string} */ name) =>
    h("span", {}, h("i", { style: { background: colour } }), name);
  const keys = atlas.hasOwnColours()
    ? lit.map((label) => key(colours[label], className(label)))
    : state.by === "category"
      ? items.categories.map((name, i) => key(categoryColours[i], name))
      : [];
  const names = lit.slice(0, 4).map(className).join(", ") + (lit.length > 4 ? ` and ${lit.length - 4} more` : "");
  const count = Array.from(chosen).filter((item) => state.lit.has(items.labels[item])).length;
  at("atlas-caption").replaceChildren(
    h("div", { class: "keys" }, keys),
    lit.length ? `Highlighted: ${names}; ${plural(count, "point")}. ` : "",
    "Click a point to highlight its class. Drag to move; Ctrl and wheel, or the buttons, to zoom.",
  );
}

/**
 * Hover, click, drag, wheel and two fingers.
 * @param {Atlas} atlas
 * @param {(labels: number[]) => void} highlight
 */
function atlasPointer(atlas, highlight) {
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
      atlasHover(atlas, event, atlas.nearest(now));
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
    if (dragged) return;
    const found = atlas.nearest(where(event));
    const label = found < 0 ? null : atlas.labelOf(found);
    highlight(label === null || (state.lit.size === 1 && state.lit.has(label)) ? [] : [label]);
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
 */
function atlasHover(atlas, event, found) {
  if (found !== atlas.state.hover) {
    atlas.state.hover = found;
    atlas.draw();
  }
  if (found < 0) {
    hideTip();
    return;
  }
  const item = atlas.chosen[found];
  const image = sheets && fill(thumb(item), { style: { "--side": "112px" } }, []);
  showTip(event.clientX, event.clientY, image, about(item));
}

/**
 * @param {Atlas} atlas
 * @param {(labels: number[]) => void} highlight
 */
function atlasKeys(atlas, highlight) {
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
    Escape: () => highlight([]),
  };
  atlas.canvas.addEventListener("keydown", (event) => {
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });
}
