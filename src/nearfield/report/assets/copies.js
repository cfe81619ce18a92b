// @ts-check
// The visible leaderboard as Markdown, LaTeX and CSV.

/** @typedef {[mean: number | null, half: number | null]} Cell */

/**
 * Name and cells of every visible row, baselines included.
 * @returns {{ name: string, cells: Cell[] }[]}
 */
function visibleRows() {
  /** @type {Cell} */
  const none = [null, null];
  const rows = boardRows().map((row) => ({
    name: nameOf(row.method),
    cells: D.metrics.map((m) => row.scores[m.key] ?? none),
  }));
  const baselines = D.board.floors.map(({ name, scores }) => ({
    name,
    cells: D.metrics.map((m) => /** @type {Cell} */ ([scores[m.key] ?? null, null])),
  }));
  return [...baselines, ...rows];
}

/**
 * @param {Cell} cell
 * @param {number} i number of the metric
 * @param {string} plusMinusSign
 */
function cellText([mean, half], i, plusMinusSign) {
  const text = (/** @type {number | null} */ value) => percent(value, digits[D.metrics[i].key]);
  return text(mean) + (mean === null || half === null ? "" : `${plusMinusSign}${text(half)}`);
}

function asMarkdown() {
  const head = ["Method", ...D.metrics.map((m) => m.text)];
  const rule = head.map((_, i) => (i ? "---:" : "---"));
  const rows = visibleRows().map(({ name, cells }) => [
    name.replaceAll("|", "\\|"),
    ...cells.map((c, i) => cellText(c, i, " ± ")),
  ]);
  return [head, rule, ...rows].map((cells) => `| ${cells.join(" | ")} |\n`).join("");
}

function asLatex() {
  /** @type {Record<string, string>} */
  const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const plain = (/** @type {string} */ text) => text.replace(/[\\~^&%$#_{}]/g, (c) => special[c] ?? `\\${c}`);
  const line = (/** @type {string[]} */ cells) => `${cells.join(" & ")} \\\\`;
  const number = (/** @type {Cell} */ cell, /** @type {number} */ i) =>
    cell[0] === null ? "--" : `$${cellText(cell, i, " \\pm ")}$`;
  return [
    `\\begin{tabular}{l${"r".repeat(D.metrics.length)}}`,
    "\\toprule",
    line(["Method", ...D.metrics.map((m) => plain(m.text))]),
    "\\midrule",
    ...visibleRows().map(({ name, cells }) => line([plain(name), ...cells.map(number)])),
    "\\bottomrule",
    "\\end{tabular}",
    "",
  ].join("\n");
}

function asCsv() {
  const quoted = (/** @type {string} */ text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const head = ["method", ...D.metrics.flatMap((m) => [m.key, `${m.key} half-width`])];
  const rows = visibleRows().map(({ name, cells }) => [
    quoted(name),
    ...cells.flat().map((v) => (v === null ? "" : v.toFixed(6))),
  ]);
  return [head, ...rows].map((cells) => `${cells.join(",")}\n`).join("");
}
