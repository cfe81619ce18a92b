// The leaderboard: a table to sort and filter, the critical-difference diagram, the papers' numbers, and copies of it.

const METRIC = D.board.metric;
const boardState = { part: 0, key: METRIC, order: "descending", filter: "" };
const part = () => D.board.parts[boardState.part];

// Decimals of a metric: two where most intervals would be nothing with one.
const digits = Object.fromEntries(D.metrics.map((m) => {
  const halves = D.board.parts.flatMap((p) => p.rows).map((row) => row.scores[m.key]?.[1] ?? null).filter((half) => half !== null).sort((a, b) => a - b);
  return [m.key, halves.length && halves[halves.length >> 1] < 0.001 ? 2 : 1];
}));

function boardValue(row, key) {
  const method = D.methods[row.method];
  if (key === "name") return method.label;
  if (key === "seeds") return row.seeds.length;
  if (key === "budget") return method.budget?.seconds ?? null;
  return row.scores[key]?.[0] ?? null;
}
function boardRows() {
  const words = boardState.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = part().rows.filter((row) => words.every((word) => nameOf(row.method).toLowerCase().includes(word)));
  return rows.sort((a, b) => compare(boardValue(a, boardState.key), boardValue(b, boardState.key), boardState.order));
}

function drawBoard() {
  const columns = [
    { text: "", class: "place" },
    { key: "name", text: "Method", class: "name", first: "ascending" },
    { text: "", class: "picture" },
    ...D.metrics.map((m) => ({ key: m.key, text: m.text, title: m.help })),
    { key: "seeds", text: "Seeds" },
    { key: "budget", text: "Training", title: "Time of all networks: trials and repetitions of the chosen setting" },
  ];
  const heads = sortable(columns, boardState, fillBoard);
  const body = h("tbody"), foot = h("tfoot");
  at("board").replaceChildren(h("thead", {}, h("tr", {}, heads)), body, foot);
  const wide = columns.length;

  function fillBoard() {
    const metric = boardState.key in METRICS ? boardState.key : METRIC;
    const rows = boardRows();
    const frame = forestFrame(metric);
    heads[2].replaceChildren(h("span", {}, `${METRICS[metric].text}, 95 %`));
    const best = Object.fromEntries(D.metrics.map((m) => [m.key, Math.max(...part().rows.map((r) => r.scores[m.key]?.[0] ?? -1))]));
    const ranked = boardState.key === METRIC && boardState.order === "descending";
    const edge = ranked ? rows.findLastIndex((row) => row.like_best) : -1;
    const contiguous = edge >= 0 && edge < rows.length - 1 && rows.slice(0, edge + 1).every((row) => row.like_best);
    body.replaceChildren(...rows.map((row, i) => boardRow(row, i, best, metric, frame, wide, contiguous && i === edge)));
    if (!rows.length) body.append(h("tr", {}, h("td", { colspan: wide, class: "name" }, "No method has this in its name.")));
    foot.replaceChildren(...D.board.floors.map((floor) => h("tr", {}, h("td", { class: "place" }), h("th", { scope: "row" }, floor.name),
      h("td", { class: "picture" }, forest(floor.scores[metric] ?? null, null, frame, "")),
      D.metrics.map((m) => h("td", {}, percent(floor.scores[m.key], digits[m.key]))), h("td", {}, "–"), h("td", {}, "–"))));
  }
  fillBoard();
  drawBoard.fill = fillBoard;
  const seeds = part().compared_seeds.length;
  at("board-caption").replaceChildren(
    seeds ? h("span", {}, h("span", { class: "tag", style: { "margin-left": "0" } }, "≈ best"),
      ` no difference from the highest mean ${METRICS[METRIC].text} is shown: paired t-tests over ${seeds} seeds, corrected by Holm over all pairs of methods. `) : "",
    part().note ? `${part().text}: ${part().note} ` : "",
    "Bold: the highest mean of a column. Below the line: what needs no training. A method's name opens its details.");
}

// A name that may break after its underscores.
const breakable = (name) => name.split(/(?<=_)/).flatMap((part_, i) => (i ? [h("wbr"), part_] : [part_]));

function boardRow(row, i, best, metric, frame, wide, edge) {
  const method = D.methods[row.method];
  const label = h("button", { type: "button", class: "label", "aria-expanded": "false" }, breakable(method.label));
  const tags = [row.best && row.like_best ? h("span", { class: "tag" }, "best") : row.like_best ? h("span", { class: "tag" }, "≈ best") : null,
    method.unequal.length ? h("span", { class: "tag warn", title: method.unequal.join("; ") }, "≠ unequal") : null];
  const cells = D.metrics.map((m) => {
    const [mean, half] = row.scores[m.key] ?? [null, null];
    const text = (value) => percent(value, digits[m.key]);
    const top = mean !== null && text(mean) === text(best[m.key]);
    return h("td", { class: top ? "top" : null }, h("span", { class: "value" }, text(mean)),
      half === null ? null : h("span", { class: "half" }, ` ±${text(half)}`));
  });
  const [mean, half] = row.scores[metric] ?? [null, null];
  const line = h("tr", { class: [row.like_best ? "alike" : "", edge ? "edge" : ""].join(" ").trim() || null },
    h("td", { class: "place" }, String(i + 1)), h("th", { scope: "row" }, label, tags),
    h("td", { class: "picture" }, forest(mean, half, frame, row.like_best ? "m0" : "")), cells, h("td", {}, String(row.seeds.length)),
    h("td", {}, method.budget ? duration(method.budget.seconds) : "–"));
  label.addEventListener("click", () => {
    const open = label.getAttribute("aria-expanded") === "true";
    label.setAttribute("aria-expanded", String(!open));
    if (open) line.nextSibling.remove();
    else line.after(h("tr", { class: "detail" }, h("td", { colspan: wide }, boardDetail(row))));
  });
  return line;
}

function boardDetail(row) {
  const method = D.methods[row.method];
  const { budget, params } = method;
  const best = part().rows.find((r) => r.best);
  const facts = [];
  if (row.verdict) {
    const [difference, half] = row.verdict.difference;
    const p = row.verdict.p < 0.0001 ? "< 0.0001" : `= ${row.verdict.p.toPrecision(2)}`;
    facts.push(["Against the best", `${percent(difference, 2)}${half === null ? "" : ` ± ${percent(half, 2)}`} points behind ${nameOf(best.method)}, p ${p} after correction: ${row.verdict.text}.`]);
  }
  if (row.bootstrap && row.bootstrap[1] !== null) {
    facts.push(["New queries too", `${METRICS[METRIC].text} ${percent(row.bootstrap[0], 2)} ± ${percent(row.bootstrap[1], 2)}: the interval if seeds, folds and queries were drawn again.`]);
  }
  const setting = Object.entries(params).map(([key, value]) => `${key} = ${value}`).join(", ");
  facts.push(["Setting", (setting || "the published one") + (method.trial === null ? "" : method.trial === 0 ? " (trial 0: the published one was best)" : ` (found by trial ${method.trial})`)]);
  if (budget) {
    const trials = budget.complete + budget.pruned ? `${budget.complete} complete and ${budget.pruned} pruned trials, ` : "";
    facts.push(["Budget used", `${trials}${budget.runs} networks, ${duration(budget.seconds)} in all, ${duration(budget.train_seconds)} a network of the chosen setting`]);
  }
  facts.push(["Seeds", row.seeds.join(", ")]);
  if (method.unequal.length) facts.push(["Unequal", method.unequal.join("; ")]);
  return h("dl", { class: "pairs" }, facts.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

// Means and intervals of one metric on a common scale, one small drawing a row.
function forestFrame(metric) {
  const ends = part().rows.map((r) => r.scores[metric]).filter(Boolean).flatMap(([mean, half]) => [mean - (half ?? 0), mean + (half ?? 0)]);
  const width = innerWidth <= 760 ? 108 : 158;
  return { width, x: scale(Math.min(...ends), Math.max(...ends), 14, width - 6) };
}
function forest(mean, half, { width, x }, colour) {
  if (mean === null) return "";
  const text = `${percent(mean, 2)}${half === null ? "" : ` ± ${percent(half, 2)}`}`;
  if (x(mean) < 4) return svg(width, 22, `${text}, further left`, s("path", { class: "hollow", d: "M9,7L3,11L9,15" }));
  return svg(width, 22, text, s("g", { class: colour },
    s("line", { class: "grid", x1: 0, x2: width, y1: 11, y2: 11 }),
    half === null ? null : s("line", { class: "whisker", x1: x(mean - half), x2: x(mean + half), y1: 11, y2: 11 }),
    s("circle", { class: half === null ? "hollow" : "dot", cx: x(mean), cy: 11, r: 4, style: colour ? {} : { "--c": "var(--soft)" } })));
}

// Average ranks, and brackets over methods whose ranks differ by less than the critical difference.
function drawCritical() {
  const found = part().critical;
  const node = at("critical");
  if (!found) return node.replaceChildren();
  const order = range(found.methods.length).sort((a, b) => found.ranks[a] - found.ranks[b]);
  const row = new Map(order.map((column, i) => [column, i]));
  const groups = found.groups.map((group) => group.map((column) => row.get(column))).map((rows) => [Math.min(...rows), Math.max(...rows)]);
  const count = order.length;
  const box = h("div");
  node.replaceChildren(h("div", { class: "figure" }, h("h3", {}, "Critical difference"),
    h("p", { class: "caption" }, `Average ranks by ${METRICS[METRIC].text} within ${part().compared_seeds.length} seeds (Friedman: p ${found.p < 0.0001 ? "< 0.0001" : "= " + found.p.toPrecision(2)}). ` +
      `Two methods differ if their average ranks are more than ${found.difference.toFixed(1)} apart (Nemenyi, 95 %); a bar at the right joins those that do not. It is coarser than the paired tests above, and about new seeds only.`), box));
  responsive(box, (width) => {
    const names = order.map((column) => nameOf(found.methods[column]));
    const left = Math.min(Math.max(...names.map((n) => textWidth(n))) + 12, width * 0.42);
    const right = width - 14 - groups.length * 10;
    const top = 44, step = 21, height = top + step * count + 8;
    const x = scale(1, Math.max(count, 2), left + 12, right - 34);
    const y = (i) => top + step * i + step / 2;
    const end = x(Math.min(1 + found.difference, count));
    return svg(width, height, `Average ranks of ${count} methods`,
      [1, ...ticks(1, count, Math.max(2, Math.min(count, width / 90))).filter((t) => Number.isInteger(t) && x(t) - x(1) > 24)].map((t) => [
        s("line", { class: "grid", x1: x(t), x2: x(t), y1: top - 4, y2: height - 8 }),
        s("text", { class: "soft", x: x(t), y: top - 10, "text-anchor": "middle" }, String(t))]),
      s("path", { class: "joined", d: `M${x(1)},8V16M${x(1)},12H${end}M${end},8V16`, style: { "stroke-width": 1.5 } }),
      s("text", { class: "soft", x: Math.min(end + 8, width - 150), y: 16 }, found.difference >= count - 1 ? "critical difference: all ranks" : "critical difference"),
      order.map((column, i) => s("g", { class: i === 0 ? "m0" : "" },
        s("line", { class: "grid", x1: left, x2: x(found.ranks[column]), y1: y(i), y2: y(i) }),
        s("text", { class: "name", x: left - 2, y: y(i) + 4, "text-anchor": "end" }, fit(names[i], left - 4)),
        s("circle", { class: "dot", cx: x(found.ranks[column]), cy: y(i), r: 4.5 }),
        s("text", { class: "soft", x: x(found.ranks[column]) + 9, y: y(i) + 4 }, found.ranks[column].toFixed(1)))),
      groups.map(([first, last], g) => s("path", { class: "joined", d: `M${right + 8 + 10 * g},${y(first) - 5}V${y(last) + 5}` })));
  });
  return undefined;
}

// The papers' numbers beside ours.
function drawPapers() {
  const tables = (D.papers?.tables ?? []).filter((t) => t.part === part().key).sort((a, b) => b.rows.length - a.rows.length);
  const node = at("papers");
  if (!tables.length) return node.replaceChildren();
  const state = { table: tables[0], metric: tables[0].metrics.includes(METRIC) ? METRIC : tables[0].metrics[0] };
  const controls = h("div", { class: "controls" }), caption = h("p", { class: "caption" }), table = h("table", { id: "papers-table" });
  node.replaceChildren(h("div", { class: "figure" }, h("h3", {}, "Beside the papers"), controls, caption, h("div", { class: "wrap", tabindex: "0", role: "region", "aria-label": "Published numbers, scrollable" }, table)));
  const draw = () => {
    const { metric } = state;
    controls.replaceChildren(
      choose("Published in", tables.map((t) => ({ value: t, text: `${t.title.split(",")[0].split(" (")[0]}: ${t.network}` })), state.table,
        (t) => { state.table = t; if (!t.metrics.includes(metric)) state.metric = t.metrics[0]; draw(); }),
      choose("Score", state.table.metrics.map((m) => ({ value: m, text: METRICS[m]?.text ?? m })), metric, (m) => { state.metric = m; draw(); }));
    const tau = state.table.taus[metric];
    caption.replaceChildren(`${state.table.title}. What differs: ${state.table.network} there, ${D.papers.ours} here. ${state.table.differs} ` +
      `So look at the order rather than the level: Kendall's τ between the two rankings is ${tau === null ? "not defined" : tau.toFixed(2)}.`);
    const ours = new Map(part().rows.map((r) => [r.method, r.scores[metric]]));
    const rank = (list, value) => 1 + list.filter((v) => v > value).length;
    const mine = state.table.rows.map((r) => ours.get(r.method)[0]), theirs = state.table.rows.map((r) => r.scores[metric][0]);
    const cell = ([mean, half]) => h("td", {}, percent(mean), half === null ? null : h("span", { class: "half" }, ` ±${percent(half)}`));
    const heads = ["Method", "Ours", "Published", "Our place", "Their place"].map((t, i) => h("th", { scope: "col", class: i ? null : "name" }, h("span", {}, t)));
    table.replaceChildren(h("thead", {}, h("tr", {}, heads)), h("tbody", {}, state.table.rows.map((r, i) => h("tr", {}, h("th", { scope: "row" }, nameOf(r.method)),
      cell(ours.get(r.method)), cell(r.scores[metric]), h("td", {}, String(rank(mine, mine[i]))), h("td", {}, String(rank(theirs, theirs[i])))))));
  };
  draw();
  return undefined;
}

// What is in sight, in three languages.
function exported() {
  const rows = boardRows().map((row) => [nameOf(row.method), ...D.metrics.map((m) => row.scores[m.key] ?? [null, null])]);
  return [...rows, ...D.board.floors.map((f) => [f.name, ...D.metrics.map((m) => [f.scores[m.key] ?? null, null])])];
}
const cellText = ([mean, half], i, pm) => {
  const text = (value) => percent(value, digits[D.metrics[i].key]);
  return mean === null ? "–" : text(mean) + (half === null ? "" : `${pm}${text(half)}`);
};
function asMarkdown() {
  const head = ["Method", ...D.metrics.map((m) => m.text)];
  const rows = exported().map(([name, ...cells]) => [name.replaceAll("|", "\\|"), ...cells.map((c, i) => cellText(c, i, " ± "))]);
  return [head, head.map((_, i) => (i ? "---:" : "---")), ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n") + "\n";
}
function asLatex() {
  const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const plain = (text) => text.replace(/[\\~^&%$#_{}]/g, (c) => special[c] ?? `\\${c}`);
  const line = (cells) => `${cells.join(" & ")} \\\\`;
  const rows = exported().map(([name, ...cells]) => line([plain(name), ...cells.map((c, i) => (c[0] === null ? "--" : `$${cellText(c, i, " \\pm ")}$`))]));
  return [`\\begin{tabular}{l${"r".repeat(D.metrics.length)}}`, "\\toprule", line(["Method", ...D.metrics.map((m) => plain(m.text))]), "\\midrule", ...rows, "\\bottomrule", "\\end{tabular}", ""].join("\n");
}
function asCsv() {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const head = ["method", ...D.metrics.flatMap((m) => [m.key, `${m.key} half-width`])];
  const rows = exported().map(([name, ...cells]) => [quoted(name), ...cells.flat().map((v) => (v === null ? "" : v.toFixed(6)))]);
  return [head, ...rows].map((cells) => cells.join(",")).join("\n") + "\n";
}

function leaderboardSection() {
  const kinds = { Markdown: asMarkdown, LaTeX: asLatex, CSV: asCsv };
  const all = () => { drawBoard(); drawCritical(); drawPapers(); };
  at("board-controls").replaceChildren(...[
    D.board.parts.length > 1 ? segments("Embedding", D.board.parts.map((p, i) => ({ value: i, text: p.text, title: p.note })), 0, (i) => { boardState.part = i; all(); }) : null,
    search("Filter", "part of a name", (text) => { boardState.filter = text; drawBoard.fill(); }),
    h("div", { class: "field push", role: "group", "aria-label": "Copy the table" }, "Copy as", h("div", { class: "group" },
      Object.entries(kinds).map(([name, make]) => copyButton(name, make, () => `${boardRows().length} methods copied as ${name}`)))),
  ].filter(Boolean));
  all();
  let narrow = innerWidth <= 760;
  addEventListener("resize", () => { if (narrow !== innerWidth <= 760) { narrow = !narrow; drawBoard.fill(); } });
}
