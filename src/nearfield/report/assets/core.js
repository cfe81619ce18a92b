// The data of the page, and small tools: elements made of text only, numbers, pictures, the tip under the pointer.

const D = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const METRICS = Object.fromEntries(D.metrics.map((m) => [m.key, m]));
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// Elements. Children that are strings become text, never markup.
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (name in { value: 1, checked: 1, disabled: 1, selected: 1 }) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}
const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);
const SVG = "http://www.w3.org/2000/svg";
const s = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);
const svg = (width, height, label, ...children) =>
  s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

// Numbers.
const TYPES = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array };
function unpack(packed) {
  const text = atob(packed.bytes);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.type](bytes.buffer);
}
const shares = (packed) => Float64Array.from(unpack(packed), (v) => (v === 65535 ? NaN : v / 60000));
const once = (make) => {
  let made, done = false;
  return () => (done ? made : ((done = true), (made = make())));
};
const percent = (value, digits = 1) => (value === null || value === undefined || Number.isNaN(value) ? "–" : (100 * value).toFixed(digits));
const signed = (value, digits = 1) => (value < 0 ? "−" : "+") + Math.abs(100 * value).toFixed(digits);
const whole = (value) => Math.round(value).toLocaleString("en");
const short = (value) => (typeof value === "number" ? Number(value.toPrecision(3)).toString() : String(value));
const range = (n) => Array.from({ length: n }, (_, i) => i);
function duration(seconds) {
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// Multiples of 1, 2 or 5 times a power of ten that lie within low..high, about `count` of them.
function ticks(low, high, count) {
  const rough = Math.max((high - low) / count, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough * (1 - 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}
const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// Positions near the wanted ones, in their order, at least `gap` apart, within low..high if they fit there.
function spread(wanted, gap, low, high) {
  const order = range(wanted.length).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [...wanted];
  order.forEach((i, n) => { placed[i] = Math.max(placed[i], n ? placed[order[n - 1]] + gap : low); });
  let limit = Math.max(high, low + gap * (wanted.length - 1));
  for (const i of order.reverse()) { placed[i] = Math.min(placed[i], limit); limit = placed[i] - gap; }
  return placed;
}
const pen = once(() => document.createElement("canvas").getContext("2d"));
function textWidth(text, size = 12.5) {
  pen().font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen().measureText(text).width;
}
// Text cut in the middle to fit into `width` pixels: both ends tell methods apart.
function fit(text, width, size = 12.5) {
  if (textWidth(text, size) <= width) return text;
  for (let n = text.length - 1; n > 2; n--) {
    const tail = Math.floor((n - 1) / 2);
    const cut = `${text.slice(0, n - tail)}…${text.slice(text.length - tail)}`;
    if (textWidth(cut, size) <= width) return cut;
  }
  return "…";
}

// A drawing that is made again when the room for it changes; `draw` gets the width.
function responsive(node, draw) {
  let width = 0;
  const redraw = (force) => {
    const now = Math.floor(node.clientWidth);
    if (now && (force || now !== width)) { width = now; node.replaceChildren(draw(now)); }
  };
  new ResizeObserver(() => redraw(false)).observe(node);
  redraw(true);
  return () => redraw(true);
}

// Methods keep their colour and dash everywhere; those at the top of the board get different colours.
const ORDER = D.board.parts[0].rows.map((row) => row.method);
const placeOf = new Map(ORDER.map((method, place) => [method, place]));
const look = (method) => { const place = placeOf.get(method) ?? 0; return `m${place % 8} dash${Math.floor(place / 8) % 4}`; };
const nameOf = (method) => D.methods[method].label;

// The colour that a variable has now, for canvases.
function ink(name) {
  const probe = at("live");
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = "";
  return found;
}
const themed = [];  // what to draw again when the theme changes

// The tip under the pointer.
function showTip(x, y, ...content) {
  const tip = at("tip");
  tip.replaceChildren(...content.flat(3).filter(Boolean));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 14) : y + 18}px`;
}
const hideTip = () => { at("tip").hidden = true; };
addEventListener("scroll", hideTip, { passive: true });
const say = (text) => { at("live").textContent = text; };

// Pictures: squares of a few large sheets, which are decoded when one of their pictures is first shown.
const items = D.items ? { ...D.items, labels: unpack(D.items.labels), thumbs: unpack(D.items.thumbs) } : null;
const className = (label) => items.classes[label];
const categoryName = (label) => items.categories[items.class_category[label]];
const sheetUrl = D.sheets ? range(D.sheets.sheets).map((i) => once(() => {
  const bytes = unpack({ type: "uint8", bytes: at(`sheet-${i}`).textContent });
  return URL.createObjectURL(new Blob([bytes], { type: "image/webp" }));
})) : [];
const sheetImage = sheetUrl.map((url) => once(() => {
  const image = new Image();
  image.src = url();
  return image;
}));
function place(item) {
  const thumb = items.thumbs[item];
  if (thumb < 0 || !D.sheets) return null;
  const within = thumb % D.sheets.per_sheet;
  return { sheet: Math.floor(thumb / D.sheets.per_sheet), column: within % D.sheets.columns, row: Math.floor(within / D.sheets.columns) };
}
function thumb(item, label) {
  const found = place(item);
  const name = label ?? className(items.labels[item]);
  if (!found) return h("span", { class: "thumb blank", role: "img", "aria-label": name }, className(items.labels[item]));
  const { columns } = D.sheets;
  const size = `calc(${columns} * var(--side, 64px)) auto`;
  const position = `calc(${-found.column} * var(--side, 64px)) calc(${-found.row} * var(--side, 64px))`;
  return h("span", { class: "thumb", role: "img", "aria-label": name,
    style: { "background-image": `url("${sheetUrl[found.sheet]()}")`, "background-size": size, "background-position": position } });
}
const about = (item) => {
  const label = items.labels[item];
  return [h("b", {}, className(label)), items.categories.length > 1 ? h("div", { class: "soft" }, categoryName(label)) : null,
    items.files.length ? h("div", { class: "soft file", title: items.files[item] }, items.files[item].split("/").pop()) : null];
};
