// @ts-check
// The data of the page and small tools: drawings, colours of methods.

/** @type {PageData} */
const D = JSON.parse(at("data").textContent ?? "");
const METRICS = Object.fromEntries(D.metrics.map((m) => [m.key, m]));
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

// ------------------------------------------------------------------------------------------ drawings

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
