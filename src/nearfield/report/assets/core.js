// @ts-check
// The data of the page and small tools: elements, drawings, colours of methods, the tooltip.

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @type {PageData} */
const D = JSON.parse(at("data").textContent ?? "");
const METRICS = Object.fromEntries(D.metrics.map((m) => [m.key, m]));
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * A function that computes its value when it is first called, and only then.
 * @template T
 * @param {() => T} make
 */
function once(make) {
  /** @type {{ value: T } | null} */
  let made = null;
  return () => (made ??= { value: make() }).value;
}

/**
 * The value of a key that must be there.
 * @template K, V
 * @param {Map<K, V>} map
 * @param {K} key
 */
function got(map, key) {
  const value = map.get(key);
  if (value === undefined) throw new Error(`the data of the page has no ${key}`);
  return value;
}

// ------------------------------------------------------------------------------------------ elements

/**
 * Set properties and append children; strings become text, never markup.
 * @template {HTMLElement | SVGElement} E
 * @param {E} element
 * @param {Props} props
 * @param {Child[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (typeof value === "object") setStyle(element, value);
    else if (["value", "checked", "disabled", "selected"].includes(name)) Object.assign(element, { [name]: value });
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Record<string, string | number>} style
 */
function setStyle(element, style) {
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, String(value));
}

/**
 * The nodes and strings among nested children.
 * @param {Child[]} children
 */
function present(children) {
  /** @type {(Node | string)[]} */
  const found = [];
  for (const child of children) {
    if (Array.isArray(child)) found.push(...present(child));
    else if (child !== null && child !== undefined && child !== false) found.push(child);
  }
  return found;
}

/**
 * An HTML element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Props} props
 * @param {Child[]} children
 */
const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Props} props
 * @param {Child[]} children
 */
const s = (tag, props = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);

/**
 * A drawing.
 * @param {number} width
 * @param {number} height
 * @param {string} label
 * @param {Child[]} children
 */
const svg = (width, height, label, ...children) =>
  s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

/**
 * The context of a canvas.
 * @param {HTMLCanvasElement} canvas
 */
const context2d = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

// ------------------------------------------------------------------------------------------ drawings

/**
 * A drawing that is repeated when its width changes, or when the function returned is called.
 * @param {HTMLElement} node
 * @param {(width: number) => Node} draw
 */
function responsive(node, draw) {
  let width = 0;
  const redraw = (/** @type {boolean} */ force) => {
    const now = Math.floor(node.clientWidth);
    if (!now || (!force && now === width)) return;
    width = now;
    node.replaceChildren(draw(now));
  };
  new ResizeObserver(() => redraw(false)).observe(node);
  redraw(true);
  return () => redraw(true);
}

// ------------------------------------------------------------------------------------------ methods and colours

// A method has the same colour and dash everywhere; those at the top of the board get different colours.
const ORDER = D.board.parts[0].rows.map((row) => row.method);
const placeOf = new Map(ORDER.map((method, place) => [method, place]));
function look(/** @type {number} */ method) {
  const place = placeOf.get(method) ?? 0;
  return `m${place % 8} dash${Math.floor(place / 8) % 4}`;
}
const nameOf = (/** @type {number} */ method) => D.methods[method].label;

/**
 * The present colour of a CSS variable, for canvases.
 * @param {string} name
 */
function ink(name) {
  const probe = at("live");
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = "";
  return found;
}
/** @type {(() => void)[]} */
const themed = []; // canvases to draw again when the theme changes

// ------------------------------------------------------------------------------------------ tooltip

/**
 * @param {number} x
 * @param {number} y
 * @param {Child[]} content
 */
function showTip(x, y, ...content) {
  const tip = at("tip");
  tip.replaceChildren(...present(content));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 14) : y + 18}px`;
}
function hideTip() {
  at("tip").hidden = true;
}
addEventListener("scroll", hideTip, { passive: true });
function say(/** @type {string} */ text) {
  at("live").textContent = text;
}
