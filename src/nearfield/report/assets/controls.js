// @ts-check
// Controls: native ones, so that keyboards and screen readers can use them.

/**
 * One of several, from a list.
 * @template T
 * @param {string} label
 * @param {Choice<T>[]} options
 * @param {T} value
 * @param {(value: T) => void} change
 */
function choose(label, options, value, change) {
  const entries = options.map((o) => h("option", { selected: o.value === value }, o.text));
  const list = h("select", { onchange: () => change(options[list.selectedIndex].value) }, entries);
  return h("label", { class: "field" }, label, list);
}
/** @type {(methods: number[]) => Choice<number>[]} */
const methodOptions = (methods) => methods.map((m) => ({ value: m, text: nameOf(m) }));
/**
 * Methods and the choice of none of them.
 * @param {number[]} methods
 * @returns {Choice<number | null>[]}
 */
const optionalMethods = (methods) => [{ value: null, text: "None" }, ...methodOptions(methods)];
const byPlace = (/** @type {Iterable<number>} */ methods) =>
  [...methods].sort((a, b) => (placeOf.get(a) ?? 1e9) - (placeOf.get(b) ?? 1e9));

let groups = 0;
/**
 * One of a few, all visible.
 * @template T
 * @param {string} label
 * @param {Choice<T>[]} options
 * @param {T} value
 * @param {(value: T) => void} change
 */
function segments(label, options, value, change) {
  const name = `segments-${groups++}`;
  const buttons = options.map((o) => {
    const input = h("input", { type: "radio", name, checked: o.value === value, onchange: () => change(o.value) });
    return h("label", { title: o.title }, input, o.text);
  });
  return h("fieldset", { class: "segments" }, h("legend", {}, label), h("div", { class: "row" }, buttons));
}

/**
 * A search field.
 * @param {string} label
 * @param {string} hint
 * @param {(text: string) => void} change
 */
function search(label, hint, change) {
  const input = h("input", { type: "search", placeholder: hint, oninput: () => change(input.value) });
  return { field: h("label", { class: "field" }, label, input), input };
}

/**
 * A table that scrolls sideways when it is too wide.
 * @param {string} label
 * @param {HTMLTableElement} table
 */
const scrollable = (label, table) =>
  h("div", { class: "wrap", tabindex: "0", role: "region", "aria-label": `${label}, scrollable` }, table);

/**
 * A list that shows its first `step` entries, and more on request.
 * @template T
 * @param {HTMLElement} node
 * @param {T[]} entries
 * @param {(entry: T) => HTMLElement} make
 * @param {number} step
 * @param {string} noun
 */
function lazily(node, entries, make, step, noun) {
  node.replaceChildren();
  let shown = 0;
  const showMore = () => {
    const first = shown;
    add();
    /** @type {HTMLElement | null} */ (node.children[first]?.querySelector("button, a, [tabindex]"))?.focus();
  };
  const more = button("", showMore, { class: "plain more" });
  const holder = node.tagName === "TBODY" ? h("tr", {}, h("td", { class: "name", colspan: "9" }, more)) : more;
  function add() {
    holder.remove();
    node.append(...entries.slice(shown, shown + step).map(make));
    shown = Math.min(shown + step, entries.length);
    if (shown >= entries.length) return;
    more.textContent = `Show ${Math.min(step, entries.length - shown)} more of ${whole(entries.length)} ${noun}`;
    node.append(holder);
  }
  add();
}

/**
 * Column heads; those with a key sort by it when clicked.
 * @param {Column[]} columns
 * @param {Sorting} state
 * @param {() => void} change
 */
function sortable(columns, state, change) {
  const heads = columns.map((c) => {
    if (c.key === undefined) return plainHead(c.text, c.class);
    const props = { type: "button", class: "sort", title: c.title, onclick: () => sortBy(c) };
    return h("th", { scope: "col", class: c.class }, h("button", props, c.text));
  });
  function sortBy(/** @type {Column} */ c) {
    const reversed = state.order === "ascending" ? "descending" : "ascending";
    state.order = state.key === c.key ? reversed : (c.first ?? "descending");
    state.key = c.key ?? state.key;
    mark();
    change();
  }
  function mark() {
    columns.forEach((c, i) => {
      if (c.key === state.key) heads[i].setAttribute("aria-sort", state.order);
      else heads[i].removeAttribute("aria-sort");
    });
  }
  mark();
  return heads;
}
/**
 * @param {string} text
 * @param {string | null} [kind]
 */
const plainHead = (text, kind) => h("th", { scope: "col", class: kind }, h("span", {}, text));

/**
 * Compare for sorting; missing values come last in both orders.
 * @param {string | number | null} a
 * @param {string | number | null} b
 * @param {Order} order
 */
function compare(a, b, order) {
  const missing = (/** @type {unknown} */ v) => v === null || v === undefined || Number.isNaN(v);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  const found = typeof a === "string" ? a.localeCompare(String(b)) : Number(a) - Number(b);
  return order === "ascending" ? found : -found;
}

/**
 * Copy to the clipboard; in an older way where the new one is not allowed.
 * @param {string} text
 * @param {string} done announced when it is copied
 */
async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { style: { position: "fixed", opacity: "0" }, value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(done);
}
/**
 * @param {string} text
 * @param {() => string} make what is copied
 * @param {() => string} done
 */
function copyButton(text, make, done) {
  const node = button(text, async () => {
    await copy(make(), done());
    node.textContent = "Copied";
    setTimeout(() => {
      node.textContent = text;
    }, 1200);
  });
  return node;
}
