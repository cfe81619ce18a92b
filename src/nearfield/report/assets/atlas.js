// The atlas: a map of test embeddings to move about in, with pictures on hover and when near.

const PICTURES_IN_SIGHT = 160;  // from so few points on, pictures are drawn instead of dots

function atlasSection() {
  const chosen = unpack(D.atlas.items);
  const maps = new Map(D.atlas.maps.map((m) => [m.method, once(() => Float32Array.from(unpack(m.xy), (v) => v / 65535))]));
  const methods = byPlace(maps.keys());
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": `Map of ${chosen.length} test images. Arrow keys move, plus and minus zoom, 0 shows all, Escape clears.` });
  const pen2d = canvas.getContext("2d");
  const state = { method: methods[0], by: "class", lit: new Set(), k: 1, x: 0, y: 0, hover: -1, xy: maps.get(methods[0])() };
  let size = { width: 0, height: 0 }, colours = [], paper = "", line = "", frame = 0;
  const caption = at("atlas-caption");
  at("atlas-lead").textContent = `Every point is a test image, ${chosen.length < items.labels.length ? `${whole(chosen.length)} of ${whole(items.labels.length)}, the same share of every class` : `all ${whole(chosen.length)} of them`}, ` +
    "placed by t-SNE: neighbours in the map are neighbours in the embedding, but distances between groups and their sizes mean little. All maps are turned to lie like the first.";

  // Colours: those of the charts for a few groups, hues spread around the circle for many.
  function recolour() {
    const groups = state.by === "class" ? items.classes.length : items.categories.length;
    const base = range(8).map((i) => ink(`--m${i}`));
    const dark = getComputedStyle(at("live")).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    const hue = (i) => `hsl(${(i * 137.508) % 360} ${55 + (i % 3) * 12}% ${(dark ? 58 : 38) + (i % 2) * 10}%)`;
    const group = range(groups).map((i) => (groups <= 8 ? base[i] : hue(i)));
    colours = range(items.classes.length).map((label) => group[state.by === "class" ? label : items.class_category[label]]);
    paper = ink("--paper");
    line = ink("--soft");
    legend(group);
    draw();
  }
  function legend(group) {
    const keys = state.by === "category" ? items.categories.map((name, i) => h("span", {}, h("i", { style: { background: group[i] } }), name)) : [];
    const lit = [...state.lit].slice(0, 4).map(className).join(", ") + (state.lit.size > 4 ? ` and ${state.lit.size - 4} more` : "");
    const count = state.lit.size ? chosen.reduce((n, item) => n + state.lit.has(items.labels[item]), 0) : 0;
    caption.replaceChildren(h("div", { class: "keys" }, keys), state.lit.size ? `Highlighted: ${lit}; ${count} points. ` : "",
      "Click a point to highlight its class. Drag to move; Ctrl and wheel, or the buttons, to zoom.");
  }
  const unit = () => Math.min(size.width, size.height) - 32;
  const toX = (x) => size.width / 2 + ((x - 0.5) * unit() + state.x) * state.k;
  const toY = (y) => size.height / 2 + ((y - 0.5) * unit() + state.y) * state.k;
  function draw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(paint);
  }
  function paint() {
    const { width, height } = size, { xy, lit } = state;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    pen2d.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen2d.fillStyle = paper;
    pen2d.fillRect(0, 0, width, height);
    const seen = [];
    for (let i = 0; i < chosen.length; i++) {
      const x = toX(xy[2 * i]), y = toY(xy[2 * i + 1]);
      if (x > -30 && y > -30 && x < width + 30 && y < height + 30) seen.push([i, x, y]);
    }
    const near = D.sheets && state.k > 1.5 && seen.length <= PICTURES_IN_SIGHT;
    const radius = Math.min(7, (chosen.length > 1500 ? 2.6 : 3.6) * Math.sqrt(state.k * Math.min(1, unit() / 560)));
    const isLit = (i) => !lit.size || lit.has(items.labels[chosen[i]]);
    for (const pass of [false, true]) {
      pen2d.globalAlpha = pass ? 0.92 : 0.14;
      for (const [i, x, y] of seen) if (isLit(i) === pass) (near && pass && picture(i, x, y)) || dot(i, x, y, radius);
    }
    pen2d.globalAlpha = 1;
    if (state.hover >= 0) {
      pen2d.strokeStyle = line;
      pen2d.lineWidth = 2;
      pen2d.beginPath();
      pen2d.arc(toX(xy[2 * state.hover]), toY(xy[2 * state.hover + 1]), radius + 4, 0, 7);
      pen2d.stroke();
    }
  }
  function dot(i, x, y, radius) {
    pen2d.fillStyle = colours[items.labels[chosen[i]]];
    pen2d.beginPath();
    pen2d.arc(x, y, radius, 0, 7);
    pen2d.fill();
  }
  function picture(i, x, y) {
    const found = place(chosen[i]);
    const image = found && sheetImage[found.sheet]();
    if (!image) return false;
    if (!image.complete) { image.addEventListener("load", draw, { once: true }); return false; }
    const { side } = D.sheets, shown = Math.min(side, 44);
    pen2d.drawImage(image, found.column * side, found.row * side, side, side, x - shown / 2, y - shown / 2, shown, shown);
    pen2d.strokeStyle = colours[items.labels[chosen[i]]];
    pen2d.lineWidth = 2;
    pen2d.strokeRect(x - shown / 2, y - shown / 2, shown, shown);
    return true;
  }

  // Moving about.
  function zoom(factor, x = size.width / 2, y = size.height / 2) {
    const k = Math.max(1, Math.min(60, state.k * factor));
    state.x += (x - size.width / 2) * (1 / k - 1 / state.k);
    state.y += (y - size.height / 2) * (1 / k - 1 / state.k);
    state.k = k;
    if (k === 1) state.x = state.y = 0;
    draw();
  }
  const pan = (dx, dy) => { state.x += dx / state.k; state.y += dy / state.k; draw(); };
  const whole_ = () => { state.k = 1; state.x = state.y = 0; draw(); };
  function highlight(labels) {
    state.lit = new Set(labels);
    recolour();
    say(state.lit.size ? `Highlighted ${[...state.lit].slice(0, 4).map(className).join(", ")}` : "No class highlighted");
  }
  const pointers = new Map();
  let dragged = false;
  const where = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  function nearest([x, y]) {
    let best = -1, least = 14 ** 2;
    for (let i = 0; i < chosen.length; i++) {
      const d = (toX(state.xy[2 * i]) - x) ** 2 + (toY(state.xy[2 * i + 1]) - y) ** 2;
      if (d < least && (!state.lit.size || state.lit.has(items.labels[chosen[i]]) || d < 16)) { least = d; best = i; }
    }
    return best;
  }
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, where(event)); dragged = false; });
  canvas.addEventListener("pointermove", (event) => {
    const now = where(event), before = pointers.get(event.pointerId);
    if (before) {
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
      if (others.length) {  // two fingers
        const gap = (p) => Math.hypot(p[0] - others[0][0], p[1] - others[0][1]);
        zoom(gap(now) / Math.max(1, gap(before)), (now[0] + others[0][0]) / 2, (now[1] + others[0][1]) / 2);
      } else if (event.pointerType !== "touch" && (dragged || Math.hypot(now[0] - before[0], now[1] - before[1]) > 3)) {
        if (!dragged) canvas.setPointerCapture(event.pointerId);
        dragged = true;
        pan(now[0] - before[0], now[1] - before[1]);
      } else return;
      pointers.set(event.pointerId, now);
      hideTip();
      return;
    }
    const found = nearest(now);
    if (found !== state.hover) { state.hover = found; draw(); }
    if (found < 0) hideTip();
    else showTip(event.clientX, event.clientY, D.sheets ? fill(thumb(chosen[found]), { style: { "--side": "112px" } }, []) : null, about(chosen[found]));
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(kind, (event) => {
    pointers.delete(event.pointerId);
    if (kind === "pointerleave") { hideTip(); state.hover = -1; draw(); }
  });
  canvas.addEventListener("click", (event) => {
    if (dragged) return;
    const found = nearest(where(event));
    const label = found < 0 ? null : items.labels[chosen[found]];
    highlight(label === null || (state.lit.size === 1 && state.lit.has(label)) ? [] : [label]);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.004), ...where(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(60, 0), ArrowRight: () => pan(-60, 0), ArrowUp: () => pan(0, 60), ArrowDown: () => pan(0, -60),
      "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: whole_, Escape: () => highlight([]) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // Another method: points travel to their new places.
  function change(method) {
    const from = Float32Array.from(state.xy), to = maps.get(method)();
    state.method = method;
    const start = performance.now(), time = calm.matches ? 0 : 450;
    const step = (now) => {
      const t = time ? Math.min(1, Math.max(0, (now - start) / time)) : 1, ease = t * t * (3 - 2 * t);
      state.xy = t < 1 ? from.map((v, i) => v + (to[i] - v) * ease) : to;
      paint();
      if (t < 1 && state.method === method) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
  at("atlas-controls").replaceChildren(...[
    choose("Method", methodOptions(methods), state.method, change),
    items.categories.length > 1 ? segments("Colour by", [{ value: "class", text: "Class" }, { value: "category", text: "Category" }], "class", (by) => { state.by = by; recolour(); }) : null,
    search("Highlight classes", "part of a class name", (text) => highlight(text ? range(items.classes.length).filter((c) => className(c).toLowerCase().includes(text.toLowerCase())) : [])),
  ].filter(Boolean));
  at("atlas-stage").replaceChildren(canvas, h("div", { class: "zoom" }, button("+", () => zoom(1.6), { "aria-label": "Zoom in" }),
    button("−", () => zoom(1 / 1.6), { "aria-label": "Zoom out" }), button("⤢", whole_, { "aria-label": "Show all" })));
  const resize = () => {
    const width = at("atlas-stage").clientWidth;
    if (!width || width === size.width) return;
    size = { width, height: Math.round(Math.min(660, Math.max(320, width * 0.62))) };
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = size.height * ratio;
    canvas.style.height = `${size.height}px`;
    paint();
  };
  new ResizeObserver(resize).observe(at("atlas-stage"));
  resize();
  themed.push(recolour);
  recolour();
  canvas.atlas = { state, screen: (i) => [toX(state.xy[2 * i]), toY(state.xy[2 * i + 1])], label: (i) => items.labels[chosen[i]] };
}
