// @ts-check
// The leaderboard: a table to sort and to filter, with details of each method.

const METRIC = D.board.metric;
/** @type {Sorting & { part: number, filter: string }} */
const boardState = { part: 0, key: METRIC, order: "descending", filter: "" };
const boardPart = () => D.board.parts[boardState.part];
/** @type {() => void} */
let fillBoard = () => {};

// Decimals of a metric: two where one would round most intervals to nothing.
const digits = Object.fromEntries(
  D.metrics.map((m) => {
    const rows = D.board.parts.flatMap((p) => p.rows);
    const halves = rows.map((row) => row.scores[m.key]?.[1] ?? NaN).filter((half) => !Number.isNaN(half));
    halves.sort((a, b) => a - b);
    return [m.key, halves.length && halves[halves.length >> 1] < 0.001 ? 2 : 1];
  }),
);

/**
 * What a column sorts by.
 * @param {BoardRow} row
 * @param {string} key
 */
function boardValue(row, key) {
  const method = D.methods[row.method];
  if (key === "name") return method.label;
  if (key === "seeds") return row.seeds.length;
  if (key === "budget") return method.budget?.seconds ?? null;
  return row.scores[key]?.[0] ?? null;
}

// The rows of the table that pass the filter, sorted.
function boardRows() {
  const words = boardState.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = boardPart().rows.filter((row) => words.every((word) => nameOf(row.method).toLowerCase().includes(word)));
  const { key, order } = boardState;
  return rows.sort((a, b) => compare(boardValue(a, key), boardValue(b, key), order));
}

function drawBoard() {
  /** @type {Column[]} */
  const columns = [
    { text: "", class: "place" },
    { key: "name", text: "Method", class: "name", first: "ascending" },
    { text: "", class: "picture" },
    ...D.metrics.map((m) => ({ key: m.key, text: m.text, title: m.help })),
    { key: "seeds", text: "Seeds" },
    { key: "budget", text: "Training", title: "Training time of all networks, in trials and in final runs" },
  ];
  const heads = sortable(columns, boardState, () => fillBoard());
  const body = h("tbody");
  const foot = h("tfoot");
  at("board").replaceChildren(h("thead", {}, h("tr", {}, heads)), foot, body); // shown in this order: see the style
  fillBoard = () => {
    const metric = boardState.key in METRICS ? boardState.key : METRIC;
    const frame = forestFrame(metric);
    heads[2].replaceChildren(h("span", {}, `${METRICS[metric].text}, 95 %`));
    body.replaceChildren(...boardBody(metric, frame, columns.length));
    foot.replaceChildren(...D.board.floors.map((baseline) => baselineRow(baseline, metric, frame)));
  };
  fillBoard();
  boardCaption();
}

function boardCaption() {
  const { compared_seeds, note, text } = boardPart();
  const tag = h("span", { class: "tag", style: { "margin-left": "0" } }, "≈ best");
  const tests =
    ` not significantly different from the highest mean ${METRICS[METRIC].text}: paired t-tests over ` +
    `${compared_seeds.length} seeds, Holm-corrected over all pairs of methods. `;
  at("board-caption").replaceChildren(
    ...present([
      compared_seeds.length > 0 && h("span", {}, tag, tests),
      note ? `${text}: ${note} ` : "",
      "Bold: the highest mean of a column. Above the line: untrained baselines. Click a method's name for details.",
    ]),
  );
}

/**
 * @param {string} metric
 * @param {Frame} frame
 * @param {number} wide number of columns
 */
function boardBody(metric, frame, wide) {
  const rows = boardRows();
  if (!rows.length) {
    return [h("tr", {}, h("td", { colspan: wide, class: "name" }, "No method matches the filter."))];
  }
  const best = Object.fromEntries(
    D.metrics.map((m) => [m.key, Math.max(...boardPart().rows.map((r) => r.scores[m.key]?.[0] ?? -1))]),
  );
  const ranked = boardState.key === METRIC && boardState.order === "descending";
  const edge = ranked ? rows.findLastIndex((row) => row.like_best) : -1;
  const contiguous = edge >= 0 && edge < rows.length - 1 && rows.slice(0, edge + 1).every((row) => row.like_best);
  return rows.map((row, i) => boardRow(row, i, { best, metric, frame, wide, edge: contiguous && i === edge }));
}

/**
 * @param {Baseline} baseline
 * @param {string} metric
 * @param {Frame} frame
 */
function baselineRow(baseline, metric, frame) {
  const mean = baseline.scores[metric];
  return h(
    "tr",
    {},
    h("td", { class: "place" }),
    h("th", { scope: "row" }, baseline.name),
    h("td", { class: "picture" }, mean === undefined ? "" : forest([mean, null], frame, "")),
    D.metrics.map((m) => h("td", {}, percent(baseline.scores[m.key], digits[m.key]))),
    h("td", {}, "–"),
    h("td", {}, "–"),
  );
}

// A name that may break after its underscores.
const breakable = (/** @type {string} */ name) =>
  name.split(/(?<=_)/).flatMap((piece, i) => (i ? [h("wbr"), piece] : [piece]));

/**
 * @param {BoardRow} row
 * @param {number} i
 * @param {{ best: Record<string, number>, metric: string, frame: Frame, wide: number, edge: boolean }} table
 */
function boardRow(row, i, { best, metric, frame, wide, edge }) {
  const method = D.methods[row.method];
  const props = { type: "button", class: "label", title: method.label, "aria-expanded": "false" };
  const label = h("button", props, breakable(method.label));
  const cells = D.metrics.map((m) => scoreCell(row.scores[m.key], best[m.key], digits[m.key]));
  const interval = row.scores[metric];
  const line = h(
    "tr",
    { class: [row.like_best ? "alike" : "", edge ? "edge" : ""].join(" ").trim() || null },
    h("td", { class: "place" }, String(i + 1)),
    h("th", { scope: "row" }, label, boardTags(row)),
    h("td", { class: "picture" }, interval ? forest(interval, frame, row.like_best ? "m0" : "") : ""),
    cells,
    h("td", {}, String(row.seeds.length)),
    h("td", {}, method.budget ? duration(method.budget.seconds) : "–"),
  );
  label.addEventListener("click", () => {
    const open = label.getAttribute("aria-expanded") === "true";
    label.setAttribute("aria-expanded", String(!open));
    if (open) line.nextSibling?.remove();
    else line.after(h("tr", { class: "detail" }, h("td", { colspan: wide }, boardDetail(row))));
  });
  return line;
}

/**
 * @param {BoardRow} row
 * @returns {Child[]}
 */
function boardTags(row) {
  const { unequal } = D.methods[row.method];
  const tag = row.best && row.like_best ? "best" : row.like_best ? "≈ best" : null;
  return [
    tag && h("span", { class: "tag" }, tag),
    row.below_baseline && h("span", { class: "tag warn" }, "below baseline"),
    unequal.length > 0 && h("span", { class: "tag warn", title: unequal.join("; ") }, "≠ unequal"),
  ];
}

/**
 * A mean with its half-width; bold if it reads like the best of its column.
 * @param {Interval | undefined} interval
 * @param {number} best
 * @param {number} decimals
 */
function scoreCell(interval, best, decimals) {
  const [mean, half] = interval ?? [null, null];
  const text = percent(mean, decimals);
  return h(
    "td",
    { class: mean !== null && text === percent(best, decimals) ? "top" : null },
    h("span", { class: "value" }, text),
    half !== null && h("span", { class: "half" }, ` ±${percent(half, decimals)}`),
  );
}

// ------------------------------------------------------------------------------------------ the section

function leaderboardSection() {
  const kinds = { Markdown: asMarkdown, LaTeX: asLatex, CSV: asCsv };
  const all = () => {
    drawBoard();
    drawCritical();
    drawPapers();
  };
  const parts = D.board.parts.map((p, i) => ({ value: i, text: p.text, title: p.note }));
  const copies = Object.entries(kinds).map(([name, make]) =>
    copyButton(name, make, () => `${plural(boardRows().length, "method")} copied as ${name}`),
  );
  const changePart = (/** @type {number} */ i) => {
    boardState.part = i;
    all();
  };
  const filter = search("Filter", "part of a name", (text) => {
    boardState.filter = text;
    fillBoard();
  });
  const group = h("div", { class: "group" }, copies);
  at("board-controls").replaceChildren(
    ...present([
      parts.length > 1 && segments("Embedding", parts, 0, changePart),
      filter.field,
      h("div", { class: "field push", role: "group", "aria-label": "Copy the table" }, "Copy as", group),
    ]),
  );
  all();
  let narrow = innerWidth <= 760;
  addEventListener("resize", () => {
    if (narrow === innerWidth <= 760) return;
    narrow = !narrow;
    fillBoard();
  });
}
