// Controls: real ones, so that a keyboard and a screen reader know them.

// One of several, from a list.
function choose(label, options, value, change) {
  const list = h("select", { onchange: () => change(options[list.selectedIndex].value) },
    options.map((o) => h("option", { selected: o.value === value }, o.text)));
  const field = h("label", { class: "field" }, label, list);
  field.set = (wanted) => { list.selectedIndex = options.findIndex((o) => o.value === wanted); };
  return field;
}
const methodOptions = (methods) => methods.map((m) => ({ value: m, text: nameOf(m) }));
const byPlace = (methods) => [...methods].sort((a, b) => (placeOf.get(a) ?? 1e9) - (placeOf.get(b) ?? 1e9));

// One of a few, all in sight.
let groups = 0;
function segments(label, options, value, change) {
  const name = `segments-${groups++}`;
  return h("fieldset", { class: "segments" }, h("legend", {}, label), h("div", { class: "row" },
    options.map((o) => h("label", { title: o.title },
      h("input", { type: "radio", name, checked: o.value === value, onchange: () => change(o.value) }), o.text))));
}
function search(label, hint, change) {
  const field = h("input", { type: "search", placeholder: hint, oninput: () => change(field.value) });
  return h("label", { class: "field" }, label, field);
}
const button = (text, click, props = {}) => h("button", { type: "button", class: "plain", onclick: click, ...props }, text);
const pressed = (node, on) => node.setAttribute("aria-pressed", on ? "true" : "false");

// A list that shows its first `step` entries, and more when asked.
function lazily(node, entries, make, step, what) {
  node.replaceChildren();
  let shown = 0;
  const more = button("", () => {
    const first = shown;
    add();
    node.children[first]?.querySelector("button, a, [tabindex]")?.focus();
  }, { class: "plain more" });
  const holder = node.tagName === "TBODY" ? h("tr", {}, h("td", { class: "name", colspan: "9" }, more)) : more;
  function add() {
    holder.remove();
    node.append(...entries.slice(shown, shown + step).map(make));
    shown = Math.min(shown + step, entries.length);
    if (shown < entries.length) {
      more.textContent = `Show ${Math.min(step, entries.length - shown)} more of ${whole(entries.length)} ${what}`;
      node.append(holder);
    }
  }
  add();
}

// Sorting by a column's head. `columns` are {key, text, title, first: "ascending"|"descending"}.
function sortable(columns, state, change) {
  const heads = columns.map((c) => {
    if (!c.key) return h("th", { scope: "col", class: c.class }, h("span", {}, c.text));
    return h("th", { scope: "col", class: c.class }, h("button", { type: "button", class: "sort", title: c.title, onclick: () => {
      const turn = { ascending: "descending", descending: "ascending" };
      state.order = state.key === c.key ? turn[state.order] : c.first ?? "descending";
      state.key = c.key;
      mark();
      change();
    } }, c.text));
  });
  function mark() {
    columns.forEach((c, i) => {
      if (c.key === state.key) heads[i].setAttribute("aria-sort", state.order);
      else heads[i].removeAttribute("aria-sort");
    });
  }
  mark();
  return heads;
}
function compare(a, b, order) {
  const missing = (v) => v === null || v === undefined || Number.isNaN(v);
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const found = typeof a === "string" ? a.localeCompare(b) : a - b;
  return order === "ascending" ? found : -found;
}

// The clipboard; an old way where the new one is not allowed.
async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { style: { position: "fixed", opacity: "0" } });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(done);
}
function copyButton(text, make, done) {
  const node = button(text, async () => {
    await copy(make(), done());
    node.textContent = "Copied";
    setTimeout(() => { node.textContent = text; }, 1200);
  });
  return node;
}

// The theme: as the system says, or as the reader wants.
function themeSwitch() {
  const kinds = ["auto", "light", "dark"];
  let kind = "auto";
  try { kind = localStorage.getItem("nearfield-theme") ?? "auto"; } catch { /* a file may be denied a store */ }
  const node = at("theme");
  const show = () => {
    if (kind === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
    node.replaceChildren(h("span", { class: "word" }, "Theme: "), kind);
    themed.forEach((draw) => draw());
  };
  node.addEventListener("click", () => {
    kind = kinds[(kinds.indexOf(kind) + 1) % kinds.length];
    try { localStorage.setItem("nearfield-theme", kind); } catch { /* then it lasts as long as the page */ }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
