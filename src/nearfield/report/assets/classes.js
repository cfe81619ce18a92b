// Scores by class, and the classes that are taken for each other.

const sampleOf = once(() => {
  const found = new Map();
  items.labels.forEach((label, item) => { if (!found.has(label) || (items.thumbs[found.get(label)] < 0 && items.thumbs[item] >= 0)) found.set(label, item); });
  return found;
});
const sizeOf = once(() => {
  const found = new Uint32Array(items.classes.length);
  items.labels.forEach((label) => { found[label]++; });
  return found;
});
const withThumb = (label, name) => h("span", { class: "withthumb" }, D.sheets ? fill(thumb(sampleOf().get(label), ""), { "aria-hidden": "true" }, []) : null, name);
const classState = { key: "a", order: "ascending" };

function classesSection(a, b, show) {
  const one = answers.get(a), other = b === null ? null : answers.get(b);
  const rows = range(items.classes.length).map((label) => ({ label, name: className(label), size: sizeOf()[label], a: one.classScores()[label], right: one.classRight()[label],
    ...(other ? { b: other.classScores()[label], difference: one.classScores()[label] - other.classScores()[label] } : {}) }));
  if (!other && ["b", "difference"].includes(classState.key)) { classState.key = "a"; classState.order = "ascending"; }
  const columns = [
    { key: "name", text: "Class", class: "name", first: "ascending" }, { key: "size", text: "Images" },
    { key: "a", text: other ? `AP, ${nameOf(a)}` : "Average precision", first: "ascending" },
    ...(other ? [{ key: "b", text: `AP, ${nameOf(b)}`, first: "ascending" }, { key: "difference", text: "Difference" }] : []),
    { key: "right", text: other ? `R@1, ${nameOf(a)}` : "R@1", first: "ascending" },
  ];
  const body = h("tbody");
  const bar = (value) => h("span", { class: "bars", "aria-hidden": "true" }, h("i", { style: { width: `${100 * value}%` } }));
  const draw = () => {
    rows.sort((p, q) => compare(p[classState.key], q[classState.key], classState.order) || p.label - q.label);
    lazily(body, rows, (row) => h("tr", {},
      h("td", { class: "name" }, withThumb(row.label, h("button", { type: "button", class: "label flat", title: "Show its queries", onclick: () => show(row.name) }, row.name))),
      h("td", {}, whole(row.size)), h("td", {}, percent(row.a), other ? null : bar(row.a)),
      other ? [h("td", {}, percent(row.b)), h("td", {}, signed(row.difference))] : null, h("td", {}, percent(row.right))), 10, "classes");
  };
  at("classes").replaceChildren(h("thead", {}, h("tr", {}, sortable(columns, classState, draw))), body);
  at("classes-title").textContent = `By class: ${nameOf(a)}${other ? ` against ${nameOf(b)}` : ""}`;
  draw();
  drawConfusion(a);
}

function drawConfusion(method) {
  const triples = answers.get(method).confusions();
  const count = triples.length / 3, classes = items.classes.length;
  const pairs = range(count).map((i) => ({ from: triples[3 * i], to: triples[3 * i + 1], times: triples[3 * i + 2] }));
  at("confusion-caption").textContent = count ? `Wrong nearest images of ${nameOf(method)}, over all ${whole(items.labels.length)} queries: how often an image of one class has its nearest image in another.` : `Every nearest image of ${nameOf(method)} is right.`;
  const box = at("confusion");
  const matrix = count && classes > 2 && classes <= 250 ? confusionMatrix(pairs, classes) : null;
  const body = h("tbody");
  lazily(body, pairs, (p) => h("tr", {}, h("td", { class: "name" }, withThumb(p.from, className(p.from))), h("td", { class: "name" }, withThumb(p.to, className(p.to))),
    h("td", {}, whole(p.times)), h("td", {}, percent(p.times / sizeOf()[p.from], 0) + " %")), 10, "pairs");
  const heads = ["Image of", "taken for", "Times", "Share"].map((t, i) => h("th", { scope: "col", class: i < 2 ? "name" : null }, h("span", {}, t)));
  box.className = matrix ? "confusion" : "confusion single";
  box.replaceChildren(...(count ? [matrix, h("div", { class: "wrap", tabindex: "0", role: "region", "aria-label": "Confused classes, scrollable" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body))] : []).filter(Boolean));
}

// Rows are classes of queries, columns classes of the wrong nearest image; darker is more often.
function confusionMatrix(pairs, classes) {
  const canvas = h("canvas", { width: classes, height: classes, role: "img", "aria-label": "Matrix of confused classes" });
  const counts = new Map(pairs.map((p) => [p.from * classes + p.to, p.times]));
  const largest = Math.max(...pairs.map((p) => p.times / sizeOf()[p.from]));
  const draw = () => {
    const context = canvas.getContext("2d");
    context.globalAlpha = 1;
    context.fillStyle = ink("--paper");
    context.fillRect(0, 0, classes, classes);
    context.fillStyle = ink("--line");
    for (let i = 0; i < classes; i++) context.fillRect(i, i, 1, 1);
    context.fillStyle = ink("--m1");
    for (const p of pairs) {
      context.globalAlpha = 0.12 + 0.88 * Math.sqrt(p.times / sizeOf()[p.from] / largest);
      context.fillRect(p.to, p.from, 1, 1);
    }
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [to, from] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((v) => Math.max(0, Math.min(classes - 1, Math.floor(v * classes))));
    const times = counts.get(from * classes + to) ?? 0;
    showTip(event.clientX, event.clientY, from === to ? h("b", {}, className(from)) : [h("b", {}, className(from)), h("div", {}, `taken for ${className(to)}`), h("div", { class: "soft" }, `${times} of ${sizeOf()[from]} images`)]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  drawConfusion.redraw = draw;
  draw();
  return h("div", {}, canvas, h("p", { class: "caption" }, "Rows: class of the query. Columns: class of its nearest image, where that is wrong. Grey: the diagonal."));
}
themed.push(() => drawConfusion.redraw?.());
