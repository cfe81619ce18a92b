// @ts-check
// Numbers as text, scales and ticks, text that fits.

const TYPES = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array };

/**
 * @param {Packed} packed
 * @returns {Numbers}
 */
function unpack(packed) {
  const text = atob(packed.bytes);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.type](bytes.buffer);
}
const shares = (/** @type {Packed} */ packed) =>
  Float64Array.from(unpack(packed), (v) => (v === 65535 ? NaN : v / 60000));

/**
 * @param {number | null | undefined} value
 * @param {number} digits
 */
const percent = (value, digits = 1) =>
  value === null || value === undefined || Number.isNaN(value) ? "–" : (100 * value).toFixed(digits);
/**
 * @param {number} value
 * @param {number} digits
 */
const signed = (value, digits = 1) => (value < 0 ? "−" : "+") + Math.abs(100 * value).toFixed(digits);
const whole = (/** @type {number} */ value) => Math.round(value).toLocaleString("en");
const short = (/** @type {unknown} */ value) =>
  typeof value === "number" ? Number(value.toPrecision(3)).toString() : String(value);
const pText = (/** @type {number} */ p) => (p < 0.0001 ? "< 0.0001" : `= ${p.toPrecision(2)}`);
/**
 * A mean with its half-width, both in percent.
 * @param {Interval} interval
 * @param {number} digits
 */
const plusMinus = ([mean, half], digits = 2) =>
  percent(mean, digits) + (half === null ? "" : ` ± ${percent(half, digits)}`);
/**
 * "1 seed", "2 seeds".
 * @param {number} count
 * @param {string} noun
 */
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const range = (/** @type {number} */ n) => Array.from({ length: n }, (_, i) => i);
function duration(/** @type {number} */ seconds) {
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// ------------------------------------------------------------------------------------------ scales and text

/**
 * Multiples of 1, 2 or 5 times a power of ten that lie within low..high, about `count` of them.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
function ticks(low, high, count) {
  const rough = Math.max((high - low) / count, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5].map((m) => m * power).find((m) => m >= rough * (1 - 1e-9)) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

/**
 * The linear map from low..high to from..to.
 * @param {number} low
 * @param {number} high
 * @param {number} from
 * @param {number} to
 */
const scale = (low, high, from, to) => (/** @type {number} */ value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);
const path = (/** @type {Point[]} */ points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

/**
 * Positions near the wanted ones, in their order, at least `gap` apart, within low..high if they fit there.
 * @param {number[]} wanted
 * @param {number} gap
 * @param {number} low
 * @param {number} high
 */
function spread(wanted, gap, low, high) {
  const order = range(wanted.length).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [...wanted];
  order.forEach((i, n) => {
    placed[i] = Math.max(placed[i], n ? placed[order[n - 1]] + gap : low);
  });
  let limit = Math.max(high, low + gap * (wanted.length - 1));
  for (const i of order.reverse()) {
    placed[i] = Math.min(placed[i], limit);
    limit = placed[i] - gap;
  }
  return placed;
}

const pen = once(() => context2d(document.createElement("canvas")));
/**
 * @param {string} text
 * @param {number} size in pixels
 */
function textWidth(text, size = 12.5) {
  pen().font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen().measureText(text).width;
}
const widest = (/** @type {string[]} */ texts) => Math.max(...texts.map((text) => textWidth(text)));

/**
 * Text cut in the middle to fit into `width` pixels: methods differ at both ends.
 * @param {string} text
 * @param {number} width
 */
function fit(text, width) {
  if (textWidth(text) <= width) return text;
  for (let n = text.length - 1; n > 2; n--) {
    const tail = Math.floor((n - 1) / 2);
    const cut = `${text.slice(0, n - tail)}…${text.slice(text.length - tail)}`;
    if (textWidth(cut) <= width) return cut;
  }
  return "…";
}
