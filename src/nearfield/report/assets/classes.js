// @ts-check
// Scores by class, and classes that are confused with each other.

// An item of each class, with a thumbnail if there is one.
const sampleOf = once(() => {
  /** @type {Map<number, number>} */
  const found = new Map();
  items.labels.forEach((label, item) => {
    const known = found.get(label);
    if (known === undefined || (items.thumbs[known] < 0 && items.thumbs[item] >= 0)) found.set(label, item);
  });
  return found;
});
const sizeOf = once(() => {
  const found = new Uint32Array(items.classes.length);
  items.labels.forEach((label) => {
    found[label]++;
  });
  return found;
});
/**
 * @param {number} label
 * @param {Child} name
 */
function withThumb(label, name) {
  const image = sheets && fill(thumb(got(sampleOf(), label), ""), { "aria-hidden": "true" }, []);
  return h("span", { class: "withthumb" }, image, name);
}

/** @type {Sorting} */
const classState = { key: "a", order: "ascending" };
/** @type {() => void} */
let redrawConfusion = () => {};
themed.push(() => redrawConfusion());

/**
 * @param {number} a a method
 * @param {number | null} b another
 * @param {(name: string) => void} show show the queries of a class
 */
function classesSection(a, b, show) {
  const rows = classRows(a, b);
  if (b === null && ["b", "difference"].includes(classState.key)) {
    classState.key = "a";
    classState.order = "ascending";
  }
  const body = h("tbody");
  const draw = () => {
    const { key, order } = classState;
    const value = (/** @type {ClassRow} */ row) => row[/** @type {keyof ClassRow} */ (key)];
    rows.sort((p, q) => compare(value(p), value(q), order) || p.label - q.label);
    lazily(body, rows, (row) => classRow(row, b !== null, show), 10, "classes");
  };
  const heads = sortable(classColumns(a, b), classState, draw);
  at("classes").replaceChildren(h("thead", {}, h("tr", {}, heads)), body);
  at("classes-title").textContent = `By class: ${nameOf(a)}${b === null ? "" : ` against ${nameOf(b)}`}`;
  draw();
  drawConfusion(a);
}

/**
 * @param {number} a
 * @param {number | null} b
 * @returns {ClassRow[]}
 */
function classRows(a, b) {
  const { classScores, classRight } = got(answers, a);
  const others = b === null ? null : got(answers, b).classScores();
  return range(items.classes.length).map((label) => {
    const [mine, theirs] = [classScores()[label], others?.[label] ?? NaN];
    const facts = { label, name: className(label), size: sizeOf()[label], right: classRight()[label] };
    return { ...facts, a: mine, b: theirs, difference: mine - theirs };
  });
}

/**
 * @param {number} a
 * @param {number | null} b
 * @returns {Column[]}
 */
function classColumns(a, b) {
  /** @type {Column[]} */
  const compared =
    b === null
      ? [{ key: "a", text: "Average precision", first: "ascending" }]
      : [
          { key: "a", text: `AP, ${nameOf(a)}`, first: "ascending" },
          { key: "b", text: `AP, ${nameOf(b)}`, first: "ascending" },
          { key: "difference", text: "Difference" },
        ];
  return [
    { key: "name", text: "Class", class: "name", first: "ascending" },
    { key: "size", text: "Images" },
    ...compared,
    { key: "right", text: b === null ? "R@1" : `R@1, ${nameOf(a)}`, first: "ascending" },
  ];
}

/**
 * @param {ClassRow} row
 * @param {boolean} compared
 * @param {(name: string) => void} show
 */
function classRow(row, compared, show) {
  const props = { type: "button", class: "label flat", title: "Show its queries", onclick: () => show(row.name) };
  const bar = h("i", { style: { width: `${100 * row.a}%` } });
  return h(
    "tr",
    {},
    h("td", { class: "name" }, withThumb(row.label, h("button", props, row.name))),
    h("td", {}, whole(row.size)),
    h("td", {}, percent(row.a), !compared && h("span", { class: "bars", "aria-hidden": "true" }, bar)),
    compared && [h("td", {}, percent(row.b)), h("td", {}, signed(row.difference))],
    h("td", {}, percent(row.right)),
  );
}

// ------------------------------------------------------------------------------------------ confusion

/** @typedef {{ from: number, to: number, times: number }} Confusion */

function drawConfusion(/** @type {number} */ method) {
  const triples = got(answers, method).confusions();
  const classes = items.classes.length;
  /** @type {Confusion[]} */
  const pairs = range(triples.length / 3).map((i) => ({
    from: triples[3 * i],
    to: triples[3 * i + 1],
    times: triples[3 * i + 2],
  }));
  const box = at("confusion");
  if (!pairs.length) {
    at("confusion-caption").textContent = `Every nearest image of ${nameOf(method)} has the class of its query.`;
    box.replaceChildren();
    return;
  }
  at("confusion-caption").textContent =
    `Wrong nearest images of ${nameOf(method)}, over all ${whole(items.labels.length)} queries: ` +
    "how often the nearest image of a query belongs to another class.";
  const matrix = classes > 2 && classes <= 250 && confusionMatrix(pairs, classes);
  const body = h("tbody");
  const pairRow = (/** @type {Confusion} */ p) =>
    h(
      "tr",
      {},
      h("td", { class: "name" }, withThumb(p.from, className(p.from))),
      h("td", { class: "name" }, withThumb(p.to, className(p.to))),
      h("td", {}, whole(p.times)),
      h("td", {}, `${percent(p.times / sizeOf()[p.from], 0)} %`),
    );
  lazily(body, pairs, pairRow, 10, "pairs");
  const heads = ["Class of the query", "Class found", "Times", "Share"];
  const cells = heads.map((text, i) => plainHead(text, i < 2 ? "name" : null));
  const table = scrollable("Confused classes", h("table", {}, h("thead", {}, h("tr", {}, cells)), body));
  box.className = matrix ? "confusion" : "confusion single";
  box.replaceChildren(...present([matrix, table]));
}

/**
 * Rows are classes of queries, columns classes of the wrong nearest image; darker is more often.
 * @param {Confusion[]} pairs
 * @param {number} classes
 */
function confusionMatrix(pairs, classes) {
  const label = "Matrix of confused classes";
  const canvas = h("canvas", { width: classes, height: classes, role: "img", "aria-label": label });
  const share = (/** @type {Confusion} */ p) => p.times / sizeOf()[p.from];
  const largest = Math.max(...pairs.map(share));
  redrawConfusion = () => {
    const context = context2d(canvas);
    context.globalAlpha = 1;
    context.fillStyle = ink("--paper");
    context.fillRect(0, 0, classes, classes);
    context.fillStyle = ink("--line");
    for (let i = 0; i < classes; i++) context.fillRect(i, i, 1, 1);
    context.fillStyle = ink("--m1");
    for (const p of pairs) {
      context.globalAlpha = 0.12 + 0.88 * Math.sqrt(share(p) / largest);
      context.fillRect(p.to, p.from, 1, 1);
    }
  };
  const counts = new Map(pairs.map((p) => [p.from * classes + p.to, p.times]));
  canvas.addEventListener("pointermove", (event) => {
    const [to, from] = cellUnder(event, canvas, classes);
    const times = counts.get(from * classes + to) ?? 0;
    const found = h("div", {}, `taken for ${className(to)}`);
    const count = h("div", { class: "soft" }, `${times} of ${sizeOf()[from]} images`);
    showTip(event.clientX, event.clientY, h("b", {}, className(from)), from !== to && [found, count]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  redrawConfusion();
  const caption = "Rows: class of the query. Columns: class of its nearest image, where that is wrong. Grey: diagonal.";
  return h("div", {}, canvas, h("p", { class: "caption" }, caption));
}

/**
 * Column and row under the pointer of a square matrix drawn over a whole canvas.
 * @param {PointerEvent} event
 * @param {HTMLCanvasElement} canvas
 * @param {number} size
 */
function cellUnder(event, canvas, size) {
  const box = canvas.getBoundingClientRect();
  const within = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  return within.map((v) => Math.max(0, Math.min(size - 1, Math.floor(v * size))));
}
