// @ts-check
// Tools of every page, whatever its data: elements, the tooltip, the theme. The search page uses them too.

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
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
 * @param {Child} text
 * @param {() => void} click
 * @param {Props} props
 */
const button = (text, click, props = {}) =>
  h("button", { type: "button", class: "plain", onclick: click, ...props }, text);
/**
 * @param {HTMLElement} node
 * @param {boolean} on
 */
const press = (node, on) => node.setAttribute("aria-pressed", on ? "true" : "false");

/**
 * The context of a canvas.
 * @param {HTMLCanvasElement} canvas
 */
const context2d = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

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

// ------------------------------------------------------------------------------------------ theme

// The theme: that of the system, or the reader's choice.
function themeSwitch() {
  const kinds = ["auto", "light", "dark"];
  let kind = "auto";
  try {
    kind = localStorage.getItem("nearfield-theme") ?? "auto";
  } catch {
    // a page opened from disk may have no storage
  }
  const node = at("theme");
  const show = () => {
    if (kind === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
    node.replaceChildren(h("span", { class: "word" }, "Theme: "), kind);
    themed.forEach((draw) => draw());
  };
  node.addEventListener("click", () => {
    kind = kinds[(kinds.indexOf(kind) + 1) % kinds.length];
    try {
      localStorage.setItem("nearfield-theme", kind);
    } catch {
      // then the choice lasts as long as the page
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
